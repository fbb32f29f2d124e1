// How llama.cpp cuts texts into words before byte-pair merges: `llama_cpp_words VOCABULARY.gguf`
// reads texts with zero bytes after them and writes a line: whether words that are tokens are taken
// whole, and whether BOS begins a text; then a line for each text: its words' lengths in
// characters. The expressions are no part of llama.cpp's API, so that its source is included.
//
//     g++ -O1 -std=c++17 llama_cpp_words.cpp -I$SOURCE/src -I$SOURCE/include \
//         -I$SOURCE/ggml/include -L$SOURCE/build/bin -lllama -lggml -lggml-base \
//         -Wl,-rpath,$SOURCE/build/bin

#include <iostream>

#include "llama-vocab.cpp"

static void log_nothing(ggml_log_level, const char *, void *) {}

int main(int, char **arguments) {
  llama_log_set(log_nothing, nullptr);
  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  llama_model *model = llama_model_load_from_file(arguments[1], params);
  if (!model)
    return 1;
  const llama_vocab *vocabulary = llama_model_get_vocab(model);
  std::cout << vocabulary->get_ignore_merges() << ' ' << vocabulary->get_add_bos() << '\n';
  llm_tokenizer_bpe tokenizer(*vocabulary);
  for (std::string text; std::getline(std::cin, text, '\0'); std::cout << '\n')
    for (const std::string &word : unicode_regex_split(text, tokenizer.regex_exprs, false))
      if (!word.empty())
        std::cout << unicode_cpts_from_utf8(word).size() << ' ';
}
