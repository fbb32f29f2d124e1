/* The sampler's passes for AVX2. */
#define MTP_PASSES mtp_sampler_passes_avx2
#include "sampler/passes.inc"
