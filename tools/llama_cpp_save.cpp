// What llama.cpp's own saver makes of a model file: `llama_cpp_save IN.gguf OUT.gguf`.
//
//     g++ -O1 llama_cpp_save.cpp -I$SOURCE/include -I$SOURCE/ggml/include \
//         -L$SOURCE/build/bin -lllama -lggml -lggml-base -Wl,-rpath,$SOURCE/build/bin

#include "llama.h"

int main(int, char **arguments) {
  llama_backend_init();
  llama_model *model =
      llama_model_load_from_file(arguments[1], llama_model_default_params());
  if (!model) {
    return 1;
  }
  llama_model_save_to_file(model, arguments[2]);
  return 0;
}
