/* Operations on the rows of one sequence. */
#ifndef MTPCORE_TESTS_BATCH_H
#define MTPCORE_TESTS_BATCH_H

#include "plan/plan.h"

enum { PLACES = 1100 };

/* Operations on rows [first, first + n), which read and write these buffers. */
typedef struct {
    const mtp_op *ops;
    int64_t n_ops, first, n;
    float *buffers[6];
    mtp_memory memory;
    mtp_states states;
    const int32_t *parent; /* of a tree; or NULL */
} batch;

void run_batch(const batch *b);

/* Rows of heads that fill a buffer. */
static inline mtp_view view(int32_t buffer, int32_t n_heads, int64_t width)
{
    return (mtp_view){buffer, n_heads, 0, n_heads * width, width, width};
}

#endif
