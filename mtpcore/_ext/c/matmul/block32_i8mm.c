#include "matmul/block32_neon.inc"

MTP_BLOCK32_KERNELS(i8mm)
