/* Fused sampling: tokens are chosen by the epilogue of the output matmul, and logits written
 * nowhere.
 *
 * Each thread keeps a running winner for each row, over the columns that it computes; at the end
 * the best of them is the row's token. */
#ifndef MTPCORE_PLAN_FUSED_SAMPLING_H
#define MTPCORE_PLAN_FUSED_SAMPLING_H

#include "plan/plan.h"
#include "sampler/sampler.h"

/* What samples from a row of logits, by settings for which mtp_can_fuse; or where it is written. */
typedef struct {
    const mtp_sampling *settings; /* NULL: nothing */
    int64_t index;
    float *logits; /* NULL: nowhere */
} mtp_row_sampler;

/* Everything in it was checked; n rows of logits. */
typedef struct {
    int32_t logits; /* buffer */
    int64_t n, most;
    const int32_t *token_ids;  /* NULL: a logit's index is its token */
    mtp_row_sampler *samplers; /* [most] */
    mtp_winner *winners;       /* [threads][most] of each thread and row */
} mtp_fused_sampling;

/* Logits in a row, where one matmul computes them and no operation reads them; 0 where tokens
 * cannot be chosen meanwhile. */
int64_t mtp_plan_n_logits(const mtp_plan *plan, int32_t logits);

/* The epilogue of the matmul that computes these logits. */
mtp_epilogue mtp_sampling_epilogue(mtp_fused_sampling *sampling);

/* Begin without winners in what this thread computes; before each run of a region. */
void mtp_sampling_begin(const mtp_fused_sampling *sampling, int thread);

/* The token that row `at` chooses, once all threads are done. */
int32_t mtp_sampling_end(const mtp_fused_sampling *sampling, int64_t at, int n_threads);

/* Run all operations; `chosen` gets the token of each row, -1 where it has no sampler. */
void mtp_plan_choose(const mtp_plan *plan, mtp_run *run, mtp_fused_sampling *sampling,
                     int32_t *chosen);

#endif
