/* Biases and penalties of rows of logits, as _ext/c/sampler/row.h has them: a bias is added in float;
 * penalties are computed in double from what that leaves, and rounded once.
 *
 * A row has a list of tokens, in their order, with what its text says of each. Drafts that the host
 * does not know yet are text after that: they count for tokens of the list, and any other one is
 * adjusted where it comes first.
 * Grid: rows. Block: 256.
 */
#include "draft.cuh"

#define THREADS 256

/* A row of logits, and its parts of the lists; ADJUSTED of launch/tokens.py. */
struct Adjusted {
    double repetition, frequency, presence;
    int row, begin, n, begin_of_drafts, n_drafts;
};

/* A token; ADJUSTMENT of launch/tokens.py. */
struct Adjustment {
    int token, at; /* its logit in the row */
    float bias;
    int is_seen, n_text; /* in prompt or text, and how often in the text */
};

/* Drafts by their numbers. */
struct Drafted {
    const Draft *drafts;
    const int *numbers;

    __device__ __forceinline__ int token(int i) const { return drafts[numbers[i]].token; }

    __device__ __forceinline__ int count(int token, int n) const
    {
        int found = 0;
        for (int i = 0; i < n; i++)
            found += this->token(i) == token;
        return found;
    }
};

/* Whether a list of n has a token. */
static __device__ __forceinline__ bool has(const Adjustment *list, int n, int token)
{
    int begin = 0;
    while (begin < n) {
        const int middle = begin + (n - begin) / 2;
        if (list[middle].token == token)
            return true;
        if (list[middle].token < token)
            begin = middle + 1;
        else
            n = middle;
    }
    return false;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    adjust(float *__restrict__ logits, const Adjusted *__restrict__ rows,
           const Adjustment *__restrict__ adjustments, const int *__restrict__ numbers,
           const Draft *__restrict__ drafts, const int *__restrict__ by_token, int n_vocab,
           int n_tokens)
{
    const Adjusted own = rows[blockIdx.x];
    const Adjustment *list = adjustments + own.begin;
    const Drafted drafted = {drafts, numbers + own.begin_of_drafts};
    float *row = logits + (size_t)own.row * n_vocab;
    for (int i = threadIdx.x; i < own.n + own.n_drafts; i += THREADS) {
        Adjustment one = {};
        if (i < own.n) {
            one = list[i];
        } else {
            one.token = drafted.token(i - own.n);
            if (one.token < 0 || one.token >= n_tokens || drafted.count(one.token, i - own.n) ||
                has(list, own.n, one.token))
                continue;
            one.at = by_token ? by_token[one.token] : one.token;
            if (one.at < 0)
                continue;
        }
        const int n_drafted = drafted.count(one.token, own.n_drafts);
        const int n_text = one.n_text + n_drafted;
        double logit = (double)(row[one.at] + one.bias);
        if (one.is_seen || n_drafted)
            logit = logit > 0.0 ? logit / own.repetition : logit * own.repetition;
        if (n_text)
            logit -= n_text * own.frequency + own.presence;
        row[one.at] = (float)logit;
    }
}
