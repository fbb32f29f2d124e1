/* See sampler.h for what is computed; here is how it is computed quickly.
 *
 * One pass finds the largest logit of every 64; most of the rest looks only at chunks whose
 * largest logit is high enough. The three cuts are prefixes of one descending order, so a heap
 * gives it up from the top until the first of them ends. Noise is turned from bits into a double
 * only where a bound on it says that the token may still win. */
#include "sampler.h"

#include <math.h>
#include <stdlib.h>

#include "cpu.h"
#include "sampler_heap.h"
#include "sampler_passes.h"
#include "sampler_race.h"

#define LARGEST_NOISE 36.8 /* -log(2^-53) and a little */

struct mtp_sampler_scratch {
    int64_t n_ids;
    float *logits;   /* [n_vocab] after bias, penalties and mask */
    float *maxima;   /* [chunks] */
    int32_t *order;  /* [n_vocab] heap of rows, then the survivors */
    int32_t *counts; /* [n_vocab] 2 * occurrences in the text + (occurs in the prompt); kept zero */
    int32_t *rows;   /* [n_ids] row of a token id, valid if token_ids maps it back */
};

static const mtp_sampler_passes *passes(void) {
#if defined(__x86_64__)
    static const mtp_sampler_passes *const table[MTP_ISA_COUNT] = {
        &mtp_sampler_passes_base, &mtp_sampler_passes_avx2, &mtp_sampler_passes_avx512};
    return table[mtp_isa()];
#else
    return &mtp_sampler_passes_base;
#endif
}

mtp_sampler_scratch *mtp_sampler_scratch_new(int64_t n_vocab, int64_t n_ids) {
    mtp_sampler_scratch *scratch = calloc(1, sizeof *scratch);
    if (!scratch) return NULL;
    const size_t n = (size_t)n_vocab;
    scratch->n_ids = n_ids;
    scratch->logits = malloc(n * sizeof(float));
    scratch->maxima = malloc((n / MTP_CHUNK + 1) * sizeof(float));
    scratch->order = malloc(n * sizeof(int32_t));
    scratch->counts = calloc(n, sizeof(int32_t));
    scratch->rows = calloc((size_t)n_ids, sizeof(int32_t));
    if (!scratch->logits || !scratch->maxima || !scratch->order || !scratch->counts ||
        !scratch->rows) {
        mtp_sampler_scratch_free(scratch);
        return NULL;
    }
    return scratch;
}

void mtp_sampler_scratch_free(mtp_sampler_scratch *scratch) {
    if (!scratch) return;
    free(scratch->logits);
    free(scratch->maxima);
    free(scratch->order);
    free(scratch->counts);
    free(scratch->rows);
    free(scratch);
}

/* -- adjustment: bias, penalties, mask ---------------------------------------------------- */

/* One row of logits on its way through the chain. */
typedef struct {
    const float *logits;
    int64_t n_vocab;
    const int32_t *token_ids;
    mtp_sampler_scratch *scratch;
} logits_row;

static inline int32_t token_id(const logits_row *row, int64_t i) {
    return row->token_ids ? row->token_ids[i] : (int32_t)i;
}

/* The row of a token id, -1 if there is none. Entries of `rows` left by another map are harmless:
 * they do not map back. */
static inline int64_t find_row(const logits_row *row, int32_t id) {
    if (id < 0) return -1;
    if (!row->token_ids) return id < row->n_vocab ? id : -1;
    if (id >= row->scratch->n_ids) return -1;
    const int32_t i = row->scratch->rows[id];
    return i < row->n_vocab && row->token_ids[i] == id ? i : -1;
}

static inline int allows(const uint32_t *mask, int32_t id) {
    return !mask || (mask[id >> 5] >> (id & 31) & 1);
}

static int has_penalties(const mtp_sampling *sampling) {
    return sampling->repetition_penalty != 1.0 || sampling->frequency_penalty != 0.0 ||
           sampling->presence_penalty != 0.0;
}

static void penalise(const logits_row *row, const mtp_sampling *sampling, const int32_t *history,
                     int64_t n_history, int64_t n_prompt) {
    int32_t *counts = row->scratch->counts;
    for (int64_t i = 0; i < n_history; i++) {
        const int64_t found = find_row(row, history[i]);
        if (found < 0) continue;
        counts[found] = i < n_prompt ? counts[found] | 1 : counts[found] + 2;
    }
    for (int64_t i = 0; i < n_history; i++) {
        const int64_t found = find_row(row, history[i]);
        if (found < 0 || counts[found] == 0) continue; /* each token once */
        const int32_t n_text = counts[found] >> 1;
        counts[found] = 0;
        double logit = row->scratch->logits[found];
        logit = logit > 0.0 ? logit / sampling->repetition_penalty
                            : logit * sampling->repetition_penalty;
        if (n_text > 0)
            logit -= n_text * sampling->frequency_penalty + sampling->presence_penalty;
        row->scratch->logits[found] = (float)logit;
    }
}

/* Point row->logits at an adjusted copy, if there is anything to adjust. */
static void adjust(logits_row *row, const mtp_sampling *sampling, const int32_t *history,
                   int64_t n_history, int64_t n_prompt) {
    const int penalties = n_history > 0 && has_penalties(sampling);
    if (sampling->n_bias == 0 && !penalties && !sampling->mask) return;
    float *adjusted = row->scratch->logits;
    memcpy(adjusted, row->logits, (size_t)row->n_vocab * sizeof(float));
    row->logits = adjusted;
    if (row->token_ids)
        for (int64_t i = 0; i < row->n_vocab; i++)
            row->scratch->rows[row->token_ids[i]] = (int32_t)i;
    for (int64_t i = 0; i < sampling->n_bias; i++) {
        const int64_t found = find_row(row, sampling->bias_ids[i]);
        if (found >= 0) adjusted[found] += sampling->bias[i];
    }
    if (penalties) penalise(row, sampling, history, n_history, n_prompt);
    if (sampling->mask)
        for (int64_t i = 0; i < row->n_vocab; i++)
            if (!allows(sampling->mask, token_id(row, i))) adjusted[i] = -INFINITY;
}

/* -- the three cuts ------------------------------------------------------------------------ */

/* A logit that no survivor of top_k falls below: of chunks' maxima the k-th largest has k - 1
 * tokens of other chunks above it. */
static float kth_maximum(const logits_row *row, int64_t k) {
    const int64_t n_chunks = (row->n_vocab + MTP_CHUNK - 1) / MTP_CHUNK;
    if (k >= n_chunks) return -INFINITY;
    int32_t *heap = row->scratch->order;
    for (int64_t i = 0; i < n_chunks; i++) heap[i] = (int32_t)i;
    heapify(heap, n_chunks, row->scratch->maxima);
    int32_t chunk = 0;
    for (int64_t i = 0; i < k; i++) chunk = pop(heap, n_chunks - i, row->scratch->maxima);
    return row->scratch->maxima[chunk];
}

/* Put the rows that pass the cuts into scratch->order[returned .. *n); `total` is the whole mass
 * (only top_p reads it). */
static int64_t cut(const logits_row *row, const mtp_sampling *sampling, float max, uint64_t total,
                   int64_t *n) {
    const float *logits = row->logits;
    const double least_mass = sampling->min_p * (double)MTP_MASS_ONE;
    const double wanted = sampling->top_p < 1.0 ? sampling->top_p * (double)total : INFINITY;
    const int64_t k = sampling->top_k > 0 ? sampling->top_k : row->n_vocab;
    /* Candidates. Tokens below a share (1 - top_p) / n_vocab sum up to less than 1 - top_p. A
     * quarter keeps clear of the rounding of masses. */
    double share = sampling->min_p;
    if (sampling->top_p < 1.0) {
        const double tail = (1.0 - sampling->top_p) * (double)total /
                            ((double)row->n_vocab * (double)MTP_MASS_ONE);
        share = tail > share ? tail : share;
    }
    const double lowest = share > 1e-30 ? (double)max + mtp_log(0.25 * share) : -INFINITY;
    const float kth = kth_maximum(row, k);
    int32_t *order = row->scratch->order;
    int64_t n_candidates = 0;
    for (int64_t begin = 0; begin < row->n_vocab; begin += MTP_CHUNK) {
        const float largest = row->scratch->maxima[begin / MTP_CHUNK];
        if (largest < kth || largest < lowest) continue;
        const int64_t end = begin + MTP_CHUNK < row->n_vocab ? begin + MTP_CHUNK : row->n_vocab;
        for (int64_t i = begin; i < end; i++)
            if (logits[i] >= kth && logits[i] >= lowest && logits[i] > -INFINITY)
                order[n_candidates++] = (int32_t)i;
    }
    heapify(order, n_candidates, logits);
    uint64_t sum = 0;
    int64_t first = n_candidates;
    while (first > 0 && n_candidates - first < k && (double)sum < wanted) {
        const int32_t i = pop(order, first, logits);
        const uint64_t mass = mtp_mass(logits[i], max);
        if ((double)mass < least_mass) break;
        sum += mass;
        first--;
    }
    *n = n_candidates;
    return first;
}

/* -- the choice ------------------------------------------------------------------------------ */

double mtp_gumbel(uint64_t seed, uint64_t stream, int64_t index, int32_t token_id) {
    const mtp_noise noise = {seed, stream, (uint32_t)index};
    return gumbel(noise_bits(&noise, token_id));
}

/* Let up to 64 rows run: rows[0 .. n), or `begin` and the following if rows is NULL. */
static void run_chunk(race *state, const logits_row *row, const int32_t *rows, int64_t begin,
                      int64_t n) {
    float logits[MTP_CHUNK];
    uint32_t ids[MTP_CHUNK];
    uint32_t lower[MTP_CHUNK], upper[MTP_CHUNK];
    if (rows) {
        for (int64_t j = 0; j < n; j++) {
            logits[j] = row->logits[rows[j]];
            ids[j] = (uint32_t)token_id(row, rows[j]);
        }
    } else {
        memcpy(logits, row->logits + begin, (size_t)n * sizeof(float));
        for (int64_t j = 0; j < n; j++) ids[j] = (uint32_t)token_id(row, begin + j);
    }
    for (int64_t j = n; j < MTP_CHUNK; j++) {
        logits[j] = -INFINITY;
        ids[j] = 0;
    }
    const double least = score_to_reach(state);
    if (!passes()->draw(logits, ids, state->noise, state->inverse, least, lower, upper)) return;
    for (int64_t j = 0; j < n; j++) {
        const double scaled = (double)logits[j] * state->inverse;
        if (!(scaled + mtp_noise_bound(upper[j]) >= score_to_reach(state))) continue;
        if (!(logits[j] > -INFINITY)) continue;
        enter(state, scaled + gumbel((uint64_t)upper[j] << 32 | lower[j]),
              rows ? rows[j] : (int32_t)(begin + j));
    }
}

static int has_cuts(const mtp_sampling *sampling) {
    return sampling->top_k > 0 || sampling->top_p < 1.0 || sampling->min_p > 0.0;
}

/* Let every row run that passes the cuts. */
static void run_all(race *state, const logits_row *row, const mtp_sampling *sampling, float max,
                    uint64_t total) {
    if (has_cuts(sampling)) {
        int64_t n;
        int64_t first = cut(row, sampling, max, total, &n);
        for (; first < n; first += MTP_CHUNK)
            run_chunk(state, row, row->scratch->order + first, 0,
                      n - first < MTP_CHUNK ? n - first : MTP_CHUNK);
        return;
    }
    for (int64_t begin = 0; begin < row->n_vocab; begin += MTP_CHUNK) {
        const float largest = row->scratch->maxima[begin / MTP_CHUNK];
        if ((double)largest * state->inverse + LARGEST_NOISE <= score_to_reach(state)) continue;
        run_chunk(state, row, NULL, begin,
                  row->n_vocab - begin < MTP_CHUNK ? row->n_vocab - begin : MTP_CHUNK);
    }
}

static int64_t choose_row(const logits_row *row, const mtp_sampling *sampling, int64_t index,
                          int64_t top, uint64_t total) {
    const mtp_noise noise = {sampling->seed, sampling->stream, (uint32_t)index};
    const double inverse = 1.0 / sampling->temperature;
    const float max = row->logits[top];
    double score = (double)max * inverse + gumbel(noise_bits(&noise, token_id(row, top)));
    int32_t winner = (int32_t)top; /* it runs first: most others need not */
    race state = {&noise, inverse, 1, 1, &score, &winner};
    run_all(&state, row, sampling, max, total);
    return winner;
}

/* Put the best `n` rows into rows[0 .. returned), the one that would be chosen first; `scores` is
 * working memory. */
static int64_t rank_rows(const logits_row *row, const mtp_sampling *sampling, int64_t index,
                         float max, uint64_t total, int64_t n, int32_t *rows, double *scores) {
    if (sampling->temperature > 0.0) {
        const mtp_noise noise = {sampling->seed, sampling->stream, (uint32_t)index};
        race state = {&noise, 1.0 / sampling->temperature, n, 0, scores, rows};
        run_all(&state, row, sampling, max, total);
        return state.n;
    }
    const mtp_sampling likeliest = {.top_k = n, .top_p = 1.0};
    int64_t end;
    const int64_t first = cut(row, &likeliest, max, total, &end);
    for (int64_t i = first; i < end; i++) rows[end - 1 - i] = row->scratch->order[i];
    return end - first;
}

/* See mtp_rank for what a share is. `row->logits[rows[0 .. n)]` are above -inf. */
static void share_out(const logits_row *row, const mtp_sampling *sampling, int64_t index, float max,
                      uint64_t total, int64_t n, const int32_t *rows, double *shares) {
    const mtp_noise noise = {sampling->seed, sampling->stream, (uint32_t)index};
    uint64_t others = total;
    double largest = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const float logit = row->logits[rows[i]];
        others -= mtp_mass(logit, max);
        shares[i] = logit == max ? 0.0 : (double)logit - (double)max;
        if (sampling->temperature > 0.0)
            shares[i] += sampling->temperature * gumbel(noise_bits(&noise, token_id(row, rows[i])));
        largest = shares[i] > largest ? shares[i] : largest;
    }
    double sum = largest < 700.0 ? (double)others / (double)MTP_MASS_ONE * mtp_exp(-largest) : 0.0;
    for (int64_t i = 0; i < n; i++) {
        shares[i] = shares[i] - largest > -700.0 ? mtp_exp(shares[i] - largest) : 0.0;
        sum += shares[i];
    }
    for (int64_t i = 0; i < n; i++) {
        shares[i] /= sum;
        if (i > 0 && shares[i] > shares[i - 1]) shares[i] = shares[i - 1]; /* rounding */
    }
}

/* The lowest row with the largest logit, -1 if every one is -inf or NaN. */
static int64_t argmax(const logits_row *row) {
    float *maxima = row->scratch->maxima;
    passes()->maxima(row->logits, row->n_vocab, maxima);
    const int64_t n_chunks = (row->n_vocab + MTP_CHUNK - 1) / MTP_CHUNK;
    int64_t best = 0;
    for (int64_t chunk = 1; chunk < n_chunks; chunk++)
        if (maxima[chunk] > maxima[best]) best = chunk;
    if (maxima[best] == -INFINITY) return -1;
    int64_t i = best * MTP_CHUNK;
    while (row->logits[i] != maxima[best]) i++;
    return i;
}

static int64_t first_allowed(const logits_row *row, const uint32_t *mask) {
    for (int64_t i = 0; i < row->n_vocab; i++)
        if (allows(mask, token_id(row, i))) return i;
    return 0;
}

int32_t mtp_choose(const float *logits, int64_t n_vocab, const mtp_sampling *sampling,
                   const int32_t *history, int64_t n_history, int64_t n_prompt, int64_t index,
                   const int32_t *token_ids, mtp_sampler_scratch *scratch, float *probability) {
    logits_row row = {logits, n_vocab, token_ids, scratch};
    adjust(&row, sampling, history, n_history, n_prompt);
    const int64_t top = argmax(&row);
    if (top < 0) {
        if (probability) *probability = 0.0f;
        return token_id(&row, first_allowed(&row, sampling->mask));
    }
    const float max = row.logits[top];
    uint64_t total = 0;
    if (probability || (sampling->temperature > 0.0 && sampling->top_p < 1.0))
        total = passes()->total_mass(row.logits, n_vocab, max);
    const int64_t chosen =
        sampling->temperature > 0.0 ? choose_row(&row, sampling, index, top, total) : top;
    if (probability)
        *probability = (float)((double)mtp_mass(row.logits[chosen], max) / (double)total);
    return token_id(&row, chosen);
}

int64_t mtp_rank(const float *logits, int64_t n_vocab, const mtp_sampling *sampling,
                 const int32_t *history, int64_t n_history, int64_t n_prompt, int64_t index,
                 const int32_t *token_ids, mtp_sampler_scratch *scratch, int64_t n, int32_t *ids,
                 float *probabilities, double *shares) {
    logits_row row = {logits, n_vocab, token_ids, scratch};
    adjust(&row, sampling, history, n_history, n_prompt);
    const int64_t top = argmax(&row);
    if (top < 0) {
        ids[0] = token_id(&row, first_allowed(&row, sampling->mask));
        probabilities[0] = 0.0f;
        shares[0] = 0.0;
        return 1;
    }
    const float max = row.logits[top];
    const uint64_t total = passes()->total_mass(row.logits, n_vocab, max);
    n = rank_rows(&row, sampling, index, max, total, n, ids, shares);
    share_out(&row, sampling, index, max, total, n, ids, shares);
    for (int64_t i = 0; i < n; i++) {
        probabilities[i] = (float)((double)mtp_mass(row.logits[ids[i]], max) / (double)total);
        ids[i] = token_id(&row, ids[i]);
    }
    return n;
}
