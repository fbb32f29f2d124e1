/* Choices in one pass over pieces of a row; see sampler.h. */
#include <math.h>

#include "sampler/sampler.h"
#include "sampler/race.h"
#include "sampler/row.h"

int mtp_is_race(const mtp_sampling *sampling) {
    return sampling->n_bias == 0 && !sampling->mask && !has_penalties(sampling) &&
           (sampling->temperature == 0.0 || !has_cuts(sampling));
}

/* The largest logit leads; of equal ones the lowest row. */
static void lead(mtp_leader *leader, const float *logits, int64_t first, float largest) {
    if (!((double)largest > leader->score)) return;
    int64_t j = 0;
    while (logits[j] != largest) j++;
    *leader = (mtp_leader){largest, first + j};
}

void mtp_race_piece(const mtp_sampling *sampling, int64_t index, const int32_t *token_ids,
                    const float *logits, int64_t first, int64_t n, mtp_leader *leader) {
    const mtp_noise noise = {sampling->seed, sampling->stream, (uint32_t)index};
    const int is_noisy = sampling->temperature > 0.0;
    int32_t row = (int32_t)leader->row;
    race state = {&noise, is_noisy ? 1.0 / sampling->temperature : 0.0, 1, row >= 0,
                  &leader->score, &row};
    for (int64_t begin = 0; begin < n; begin += MTP_CHUNK) {
        const int64_t end = begin + MTP_CHUNK < n ? begin + MTP_CHUNK : n;
        float largest;
        passes()->maxima(logits + begin, end - begin, &largest);
        if (!is_noisy)
            lead(leader, logits + begin, first + begin, largest);
        else if (!is_hopeless(&state, largest))
            run_chunk(&state, logits + begin, token_ids, first + begin, end - begin);
    }
    if (is_noisy && state.n) leader->row = row;
}

mtp_leader mtp_race_join(mtp_leader a, mtp_leader b) {
    const int is_first = a.score > b.score || (a.score == b.score && a.row < b.row);
    return is_first ? a : b;
}

int32_t mtp_race_winner(mtp_leader leader, const int32_t *token_ids) {
    const int64_t row = leader.row < 0 ? 0 : leader.row;
    return token_ids ? token_ids[row] : (int32_t)row;
}
