#include "matmul/quarters_neon.inc"

MTP_QUARTERS_KERNELS(neon)
