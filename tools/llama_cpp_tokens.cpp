// Which tokens llama.cpp makes of texts: `llama_cpp_tokens VOCABULARY.gguf` reads texts with zero
// bytes after them and writes a line for each, its ids. Special tokens are not parsed.
//
//     g++ -O1 llama_cpp_tokens.cpp -I$SOURCE/include -I$SOURCE/ggml/include \
//         -L$SOURCE/build/bin -lllama -lggml -lggml-base -Wl,-rpath,$SOURCE/build/bin

#include <iostream>
#include <string>
#include <vector>

#include "llama.h"

static void log_nothing(ggml_log_level, const char *, void *) {}

int main(int, char **arguments) {
  llama_log_set(log_nothing, nullptr);
  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  llama_model *model = llama_model_load_from_file(arguments[1], params);
  if (!model)
    return 1;
  const llama_vocab *vocabulary = llama_model_get_vocab(model);
  for (std::string text; std::getline(std::cin, text, '\0'); std::cout << '\n') {
    std::vector<llama_token> ids(4 * text.size() + 8);
    int n = llama_tokenize(vocabulary, text.data(), text.size(), ids.data(), ids.size(), false,
                           false);
    for (int i = 0; i < n; ++i)
      std::cout << ids[i] << ' ';
  }
}
