// What llama.cpp's head makes of a text: `llama_cpp_heads MODEL.gguf` reads "N id id ..." and writes
// float32[N - 1, n_vocab], the head's logits of all tokens but the first, each with the trunk's state
// of the token before, with keys and values in float32.
//
//     g++ -O1 llama_cpp_heads.cpp -I$SOURCE/include -I$SOURCE/ggml/include -I$SOURCE/src \
//         -L$SOURCE/build/bin -lllama -lggml -lggml-base -Wl,-rpath,$SOURCE/build/bin

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "llama-ext.h"
#include "llama.h"

static llama_batch batch_of(const int *ids, int n, int width) {
  llama_batch batch = llama_batch_init(n, width, 1);
  batch.n_tokens = n;
  if (width)
    batch.token = (llama_token *)malloc(n * sizeof(llama_token));
  for (int i = 0; i < n; i++) {
    batch.token[i] = ids[i];
    batch.pos[i] = i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = 1;
  }
  return batch;
}

int main(int, char **arguments) {
  llama_backend_init();
  llama_model_params options = llama_model_default_params();
  options.load_mtp = true;
  llama_model *model = llama_model_load_from_file(arguments[1], options);
  int n;
  if (!model || scanf("%d", &n) != 1)
    return 1;
  std::vector<int> ids(n);
  for (int &id : ids)
    if (scanf("%d", &id) != 1)
      return 1;
  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = params.n_ubatch = 512;
  params.n_threads = params.n_threads_batch = 1;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.type_k = params.type_v = GGML_TYPE_F32;
  llama_context *trunk = llama_init_from_model(model, params);
  if (!trunk)
    return 2;
  llama_set_embeddings_nextn(trunk, true, false);
  if (llama_decode(trunk, batch_of(ids.data(), n, 0)))
    return 3;
  const float *rows = llama_get_embeddings_nextn(trunk);
  params.ctx_type = LLAMA_CONTEXT_TYPE_MTP;
  params.ctx_other = trunk;
  llama_context *head = llama_init_from_model(model, params);
  if (!rows || !head)
    return 4;
  llama_set_embeddings_nextn(head, true, true);
  const int width = llama_model_n_embd(model);
  llama_batch batch = batch_of(ids.data() + 1, n - 1, width);
  std::copy_n(rows, (size_t)(n - 1) * width, batch.embd);
  if (llama_decode(head, batch))
    return 5;
  const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
  for (int i = 0; i < n - 1; i++)
    fwrite(llama_get_logits_ith(head, i), sizeof(float), n_vocab, stdout);
  return 0;
}
