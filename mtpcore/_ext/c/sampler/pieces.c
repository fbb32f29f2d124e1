/* Choices in one pass over pieces of a row; see sampler.h. */
#include <math.h>

#include "sampler/sampler.h"
#include "sampler/gumbel_max.h"
#include "sampler/adjust.h"

int mtp_can_fuse(const mtp_sampling *sampling)
{
    return sampling->n_bias == 0 && !sampling->mask && !has_penalties(sampling) &&
           (sampling->temperature == 0.0 || !has_cuts(sampling));
}

/* The largest logit leads; of equal ones the lowest row. */
static void take_largest(mtp_winner *winner, const float *logits, int64_t first, float largest)
{
    if (!((double)largest > winner->score))
        return;
    int64_t j = 0;
    while (logits[j] != largest)
        j++;
    *winner = (mtp_winner){largest, first + j};
}

void mtp_fused_piece(const mtp_sampling *sampling, int64_t index, const int32_t *token_ids,
                     const float *logits, int64_t first, int64_t n, mtp_winner *winner)
{
    const mtp_noise noise = {sampling->seed, sampling->stream, (uint32_t)index};
    const int is_noisy = sampling->temperature > 0.0;
    int32_t row = (int32_t)winner->row;
    gumbel_max state = {
        &noise, is_noisy ? 1.0 / sampling->temperature : 0.0, 1, row >= 0, &winner->score, &row};
    for (int64_t begin = 0; begin < n; begin += MTP_CHUNK) {
        const int64_t end = begin + MTP_CHUNK < n ? begin + MTP_CHUNK : n;
        float largest;
        passes()->maxima(logits + begin, end - begin, &largest);
        if (!is_noisy)
            take_largest(winner, logits + begin, first + begin, largest);
        else if (!cannot_win(&state, largest))
            try_chunk(&state, logits + begin, token_ids, first + begin, end - begin);
    }
    if (is_noisy && state.n)
        winner->row = row;
}

mtp_winner mtp_better_of(mtp_winner a, mtp_winner b)
{
    const int is_first = a.score > b.score || (a.score == b.score && a.row < b.row);
    return is_first ? a : b;
}

int32_t mtp_winning_token(mtp_winner winner, const int32_t *token_ids)
{
    if (winner.row < 0)
        return MTP_NO_TOKEN;
    return token_ids ? token_ids[winner.row] : (int32_t)winner.row;
}
