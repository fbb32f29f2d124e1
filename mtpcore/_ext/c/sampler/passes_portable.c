/* The sampler's passes in portable C. */
#define MTP_PASSES mtp_sampler_passes_base
#include "sampler/passes.inc"
