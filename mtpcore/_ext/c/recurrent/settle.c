#include "recurrent/settle.h"

#include <string.h>

void mtp_delta_settle(const mtp_delta *d, const float *base, const float *log, const int32_t *rows,
                      int64_t n_rows, float *scratch, float *to)
{
    const int64_t n_blocks = mtp_delta_blocks(d), n = d->k_width * LANES;
    float *state = scratch, *factors = scratch + n;
    for (int64_t head = 0; head < d->n_heads; head++)
        for (int64_t block = 0; block < n_blocks; block++) {
            const int64_t at = (head * n_blocks + block) * n;
            delta_walk walk = delta_walk_from(d, at, base + at, state, factors);
            for (int64_t i = 0; i < n_rows; i++) {
                const delta_row row =
                    delta_row_of_log(d, log + rows[i] * mtp_delta_logged(d), head, block);
                delta_begin(&walk, NULL, &row);
            }
            delta_end(&walk, NULL);
            const int64_t column = block * LANES, left = d->v_width - column;
            for (int64_t k = 0; k < d->k_width; k++)
                memcpy(to + (head * d->k_width + k) * d->v_width + column, walk.from + k * LANES,
                       (size_t)(left < LANES ? left : LANES) * sizeof *to);
        }
}
