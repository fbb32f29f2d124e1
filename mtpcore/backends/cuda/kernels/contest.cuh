/* What a token of a row scores in the choice, by the Gumbel-max trick: logit / temperature + noise; at
 * temperature 0 its logit. NaN and -inf do not take part, nor does what does not pass the cuts, where
 * there are any; `tops` are then the rows' largest logits. The noise is that of the token's id, which
 * token_ids may name. noise.cuh, winner.cuh and cut.cuh are there.
 */
#define PER_THREAD 8

struct Contest {
    const Chooser chooser;
    const float *row;
    const int *token_ids;
    const int n_vocab, row_bits;
    const bool is_noisy, has_cuts;
    const double inverse;
    const Cut cut;
    const float max;

    /* The `number`-th of those who choose; without `cuts` there are no `tops`. */
    __device__ __forceinline__ Contest(int number, const Chooser *choosers, const float *logits,
                                       const int *token_ids, const Cut *cuts, const int *tops,
                                       int n_vocab, int row_bits, bool is_greedy)
        : chooser(choosers[number]), row(logits + (size_t)chooser.row * n_vocab),
          token_ids(token_ids), n_vocab(n_vocab), row_bits(row_bits),
          is_noisy(chooser.temperature > 0.0 && !is_greedy), has_cuts(cuts),
          inverse(is_noisy ? 1.0 / chooser.temperature : 1.0), cut(cuts ? cuts[number] : Cut{}),
          max(cuts ? row[tops[number]] : 0.0f)
    {
    }

    __device__ __forceinline__ uint2 bits(int at) const
    {
        return noise_bits(chooser, token_ids ? token_ids[at] : at);
    }

    __device__ __forceinline__ double score(int at) const
    {
        const double scaled = (double)row[at] * inverse;
        return is_noisy ? scaled + gumbel(bits(at)) : scaled;
    }

    /* No token scores more than this, which takes no logarithm. */
    __device__ __forceinline__ double bound(int at) const
    {
        const double scaled = (double)row[at] * inverse;
        return is_noisy ? scaled + noise_bound(bits(at).y) : scaled;
    }

    /* Whether a token may be chosen. */
    __device__ __forceinline__ bool has(int at) const
    {
        if (at >= n_vocab || !(row[at] > __uint_as_float(0xff800000u)))
            return false;
        return !has_cuts ||
               (key_of(row[at], at, row_bits) >= cut.last &&
                (cut.min_p == 0.0 || (double)mass_of(row[at], max) >= cut.min_p * MASS_ONE));
    }
};
