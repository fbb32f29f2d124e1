/* The sampler's passes for NEON. */
#define MTP_PASSES mtp_sampler_passes_neon
#include "sampler/passes.inc"
