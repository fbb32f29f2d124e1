/* The state of a delta rule after a base and rows of its log. */
#ifndef MTPCORE_SETTLE_H
#define MTPCORE_SETTLE_H

#include <stdint.h>

#include "recurrent/delta_step.h"

/* Write float[heads][k_width][v_width] to `to`; `scratch` has room for k_width * 32 values. */
void mtp_delta_settle(const mtp_delta *d, const float *base, const float *log, const int32_t *rows,
                      int64_t n_rows, float *scratch, float *to);

#endif
