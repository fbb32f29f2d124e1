#include "matmul/block256_ymm.inc"

MTP_BLOCK256_KERNELS(avx2)
