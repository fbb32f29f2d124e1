// What llama.cpp makes of a text: `llama_cpp_logits MODEL.gguf` reads "N id id ..." and writes
// float32[N, n_vocab], the logits of all tokens, with keys and values in float32.
//
//     g++ -O1 llama_cpp_logits.cpp -I$SOURCE/include -I$SOURCE/ggml/include \
//         -L$SOURCE/build/bin -lllama -lggml -lggml-base -Wl,-rpath,$SOURCE/build/bin

#include <cstdio>

#include "llama.h"

int main(int, char **arguments) {
  llama_backend_init();
  llama_model *model =
      llama_model_load_from_file(arguments[1], llama_model_default_params());
  if (!model)
    return 1;
  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = params.n_ubatch = 512;
  params.n_threads = params.n_threads_batch = 1;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.type_k = params.type_v = GGML_TYPE_F32;
  llama_context *context = llama_init_from_model(model, params);
  int n;
  if (!context || scanf("%d", &n) != 1)
    return 2;
  llama_batch batch = llama_batch_init(n, 0, 1);
  batch.n_tokens = n;
  for (int i = 0; i < n; i++) {
    if (scanf("%d", &batch.token[i]) != 1)
      return 2;
    batch.pos[i] = i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = 1;
  }
  if (llama_decode(context, batch))
    return 3;
  int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
  for (int i = 0; i < n; i++)
    fwrite(llama_get_logits_ith(context, i), sizeof(float), n_vocab, stdout);
  return 0;
}
