/* The sampler's passes in portable C. */
#define MTP_PASSES mtp_sampler_passes_base
#define MTP_NAME "base"
#include "sampler_passes.inc"
