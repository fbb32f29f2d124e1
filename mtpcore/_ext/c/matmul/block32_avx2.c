#include "matmul/block32_ymm.inc"

MTP_BLOCK32_KERNELS(avx2)
