#define FUNCTIONS functions_base
#include "functions.inc"
