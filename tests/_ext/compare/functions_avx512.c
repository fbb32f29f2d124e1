#define FUNCTIONS functions_avx512
#include "functions.inc"
