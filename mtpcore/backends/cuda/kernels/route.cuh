/* From the logits of all experts the ids and weights of the n_used best, best first: the formulas,
 * the order of sums, and the bits, of the CPU's kernels.
 *
 * Experts are compared by gate + correction, the lowest id first among equals, not a number last;
 * only those of the n_groups_used groups take part whose n_best (1 or 2) best experts sum highest.
 * The gate is a sigmoid, or a softmax where SOFTMAX: its sum is made in sixteen lanes (expert i in
 * lane i mod 16, ascending), these are added 8, 4, 2 and 1 apart. The weights are the gates chosen,
 * where `normalise` divided by their sum in the order of ranks, times scale, times the expert's
 * factor. Ranks after those chosen, of which there are n_ranks in all, are experts after all others, with
 * a share of one: every row chooses them.
 */
#define NOBODY 0x7fffffff
#define MINUS_INFINITY __uint_as_float(0xff800000u)
#define TAKEN __uint_as_float(0x7fc00000u) /* no score is a NaN, none loses against one */

/* How experts are chosen. */
struct Choice {
    const float *correction, *factors;
    int n, n_used, n_ranks, normalise;
    float scale;
    int n_groups, n_groups_used, n_best;
};

struct Best {
    float score;
    int id;
};

static __device__ __forceinline__ Best better(Best a, Best b)
{
    const bool take = b.score > a.score || (b.score == a.score && b.id < a.id);
    return take ? b : a;
}

/* The best of n scores; the same in all lanes. */
static __device__ __forceinline__ Best best_of_warp(const float *score, int n)
{
    const int lane = threadIdx.x & 31;
    Best best = {MINUS_INFINITY, NOBODY};
    for (int i = lane; i < n; i += 32)
        best = better(best, Best{score[i], i});
    for (int step = 16; step > 0; step >>= 1)
        best = better(best, Best{__shfl_xor_sync(0xffffffffu, best.score, step),
                                 __shfl_xor_sync(0xffffffffu, best.id, step)});
    return best;
}

static __device__ __forceinline__ float number_or_least(float x)
{
    return x == x ? x : MINUS_INFINITY;
}

/* Gates of softmax: exp(z - top) / sum; top is the first logit, or a larger one. */
static __device__ __forceinline__ void softmax(const float *z, float *gate, int n)
{
    const int lane = threadIdx.x & 31;
    float top = z[0];
    for (int i = lane; i < n; i += 32)
        top = z[i] > top ? z[i] : top;
    for (int step = 16; step > 0; step >>= 1) {
        const float other = __shfl_xor_sync(0xffffffffu, top, step);
        top = other > top ? other : top;
    }
    for (int i = lane; i < n; i += 32)
        gate[i] = exponential(z[i] - top);
    __syncwarp();
    float sum = 0.0f;
    for (int i = lane & 15; i < n; i += 16)
        sum += gate[i];
    for (int step = 8; step > 0; step >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    __syncwarp();
    for (int i = lane; i < n; i += 32)
        gate[i] = __fdiv_rn(gate[i], sum);
}

/* Takes the experts of all groups but the best ones. */
static __device__ __forceinline__ void take_other_groups(const Choice &choice, float *score,
                                                         float *worth)
{
    const int lane = threadIdx.x & 31, n = choice.n, n_groups = choice.n_groups;
    const int size = n / n_groups;
    for (int group = lane; group < n_groups; group += 32) {
        Best first = {MINUS_INFINITY, NOBODY}, second = first;
        for (int i = group * size; i < (group + 1) * size; i++) {
            const Best own = {score[i], i}, best = better(first, own);
            second = better(second, best.id == i ? first : own);
            first = best;
        }
        const bool both = choice.n_best == 2 && size > 1;
        worth[group] = number_or_least(both ? second.score + first.score : first.score);
    }
    __syncwarp();
    for (int i = 0; i < choice.n_groups_used; i++) {
        const int group = best_of_warp(worth, n_groups).id;
        __syncwarp();
        if (lane == 0)
            worth[group] = TAKEN;
        __syncwarp();
    }
    for (int i = lane; i < n; i += 32)
        if (worth[i / size] == worth[i / size])
            score[i] = TAKEN;
    __syncwarp();
}

/* Chooses the experts of a row, a warp's: it has room for a gate and a score of each expert, and for the
 * worth of each group. */
static __device__ __forceinline__ void route_row(const Choice &choice, const float *z, int *ids,
                                                 float *weights, float *gate, float *score,
                                                 float *worth)
{
    const int lane = threadIdx.x & 31, n = choice.n, n_used = choice.n_used;
    if (SOFTMAX)
        softmax(z, gate, n);
    else
        for (int i = lane; i < n; i += 32)
            gate[i] = sigmoid(z[i]);
    for (int i = lane; i < n; i += 32)
        score[i] = number_or_least(choice.correction ? gate[i] + choice.correction[i] : gate[i]);
    __syncwarp();
    if (choice.n_groups > 1)
        take_other_groups(choice, score, worth);

    float sum = 0.0f;
    for (int rank = 0; rank < n_used; rank++) {
        const int id = best_of_warp(score, n).id;
        sum += gate[id];
        __syncwarp();
        if (lane == 0) {
            score[id] = TAKEN;
            ids[rank] = id;
            weights[rank] = gate[id];
        }
        __syncwarp();
    }
    for (int rank = lane; rank < n_used; rank += 32) {
        const float share = weights[rank];
        const float scaled =
            (choice.normalise ? __fdiv_rn(share, sum + 1e-20f) : share) * choice.scale;
        weights[rank] = choice.factors ? scaled * choice.factors[ids[rank]] : scaled;
    }
    for (int rank = n_used + lane; rank < choice.n_ranks; rank += 32)
        ids[rank] = n + rank - n_used, weights[rank] = 1.0f;
}
