#include "matmul/chunks_neon.inc"

MTP_CHUNKS_KERNELS(neon)
