#include "plan/fused_sampling.h"

#include <math.h>
#include <string.h>

int64_t mtp_plan_n_logits(const mtp_plan *plan, int32_t logits)
{
    int64_t n_logits = 0;
    for (int64_t i = 0; i < plan->n_ops; i++) {
        const mtp_op *op = &plan->ops[i];
        for (int j = 0; j < 3; j++)
            if (op->in[j].buffer == logits && op->in[j].n_heads > 0)
                return 0;
        if (op->out[0].buffer != logits || op->out[0].n_heads == 0)
            continue;
        if (n_logits > 0 || op->kind != MTP_MATMUL || op->axis != MTP_OUTPUTS || op->weights[0])
            return 0;
        n_logits = op->out[0].width;
    }
    return n_logits;
}

static mtp_winner *winner_of(const mtp_fused_sampling *sampling, int thread, int64_t at)
{
    return &sampling->winners[thread * sampling->most + at];
}

static void take(void *argument, int thread, const mtp_piece *piece)
{
    const mtp_fused_sampling *sampling = argument;
    const int64_t n = piece->end - piece->begin;
    for (int64_t i = 0; i < piece->n_rows; i++) {
        const int64_t at = piece->first_row + i;
        const mtp_row_sampler *own = &sampling->samplers[at];
        const float *values = piece->values + i * piece->row_stride;
        if (own->settings)
            mtp_fused_piece(own->settings, own->index, sampling->token_ids, values, piece->begin, n,
                            winner_of(sampling, thread, at));
        if (own->logits)
            memcpy(own->logits + piece->begin, values, (size_t)n * sizeof(float));
    }
}

mtp_epilogue mtp_sampling_epilogue(mtp_fused_sampling *sampling)
{
    return (mtp_epilogue){sampling->logits, take, sampling};
}

void mtp_sampling_begin(const mtp_fused_sampling *sampling, int thread)
{
    for (int64_t at = 0; at < sampling->n; at++)
        *winner_of(sampling, thread, at) = (mtp_winner){-INFINITY, -1};
}

int32_t mtp_sampling_end(const mtp_fused_sampling *sampling, int64_t at, int n_threads)
{
    mtp_winner first = *winner_of(sampling, 0, at);
    for (int i = 1; i < n_threads; i++)
        first = mtp_better_of(first, *winner_of(sampling, i, at));
    return mtp_winning_token(first, sampling->token_ids);
}

void mtp_plan_choose(const mtp_plan *plan, mtp_run *run, mtp_fused_sampling *sampling,
                     int32_t *chosen)
{
    for (int i = 0; i < plan->n_threads; i++)
        mtp_sampling_begin(sampling, i);
    run->epilogue = mtp_sampling_epilogue(sampling);
    mtp_plan_run(plan, run);
    run->epilogue = (mtp_epilogue){0};
    for (int64_t at = 0; at < sampling->n; at++)
        chosen[at] =
            sampling->samplers[at].settings ? mtp_sampling_end(sampling, at, plan->n_threads) : -1;
}
