#define FUNCTIONS functions_neon
#include "functions.inc"
