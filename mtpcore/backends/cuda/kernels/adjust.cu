/* Biases and penalties of some tokens' logits, as _ext/c/sampler/row.h has them: a bias is added in
 * float; penalties are computed in double from what that leaves, and rounded once. Those of no logit,
 * -1, fill the array up to a length that does not change with every token.
 * Grid: adjustments / 256 rounded up. Block: 256.
 */
#define THREADS 256

/* One logit's; ADJUSTMENT of launch/tokens.py. */
struct Adjustment {
    double repetition, subtracted;
    long long at; /* among all logits; -1: none */
    float bias;
};

extern "C" __global__ void __launch_bounds__(THREADS)
    adjust(float *__restrict__ logits, const Adjustment *__restrict__ adjustments, int n)
{
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= n)
        return;
    const Adjustment own = adjustments[i];
    if (own.at < 0)
        return;
    const double logit = (double)(logits[own.at] + own.bias);
    const double penalised = logit > 0.0 ? logit / own.repetition : logit * own.repetition;
    logits[own.at] = (float)(penalised - own.subtracted);
}
