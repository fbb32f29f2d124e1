/* The sampler's passes for AVX-512. */
#define MTP_PASSES mtp_sampler_passes_avx512
#include "sampler/passes.inc"
