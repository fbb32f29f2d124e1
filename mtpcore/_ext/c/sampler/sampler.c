/* See sampler.h for what is computed; here is how it is computed quickly.
 *
 * One pass finds the largest logit of every 64; most of the rest looks only at chunks whose
 * largest logit is high enough. Most cuts are prefixes of one descending order, so a heap gives it
 * up from the top until the first of them ends. Bits of noise become a double only where a bound on
 * it says that the token may still win. */
#include "sampler/sampler.h"

#include <math.h>
#include <stdlib.h>

#include "sampler/adjust.h"
#include "sampler/cuts.h"
#include "sampler/passes.h"
#include "sampler/gumbel_max.h"
#include "sampler/temperature.h"

mtp_sampler_scratch *mtp_sampler_scratch_new(int64_t n_vocab, int64_t n_ids)
{
    mtp_sampler_scratch *scratch = calloc(1, sizeof *scratch);
    if (!scratch)
        return NULL;
    const size_t n = (size_t)n_vocab;
    scratch->n_ids = n_ids;
    scratch->logits = malloc(n * sizeof(float));
    scratch->maxima = malloc((n / MTP_CHUNK + 1) * sizeof(float));
    scratch->keys = malloc(n * sizeof(float));
    scratch->order = malloc(n * sizeof(int32_t));
    scratch->counts = calloc(n, sizeof(int32_t));
    scratch->rows = calloc((size_t)n_ids, sizeof(int32_t));
    if (!scratch->logits || !scratch->maxima || !scratch->keys || !scratch->order ||
        !scratch->counts || !scratch->rows) {
        mtp_sampler_scratch_free(scratch);
        return NULL;
    }
    return scratch;
}

void mtp_sampler_scratch_free(mtp_sampler_scratch *scratch)
{
    if (!scratch)
        return;
    free(scratch->logits);
    free(scratch->maxima);
    free(scratch->keys);
    free(scratch->order);
    free(scratch->counts);
    free(scratch->rows);
    free(scratch);
}

/* -- the choice ------------------------------------------------------------------------------ */

double mtp_gumbel(uint64_t seed, uint64_t stream, int64_t index, int32_t token_id)
{
    const mtp_noise noise = {seed, stream, (uint32_t)index};
    return gumbel(noise_bits(&noise, token_id));
}

/* Let rows[0 .. n) run, 64 at most. */
static void try_rows(gumbel_max *state, const logits_row *row, const int32_t *rows, int64_t n)
{
    candidates all;
    all.n = n;
    for (int64_t j = 0; j < n; j++) {
        all.logits[j] = row->logits[rows[j]];
        all.ids[j] = (uint32_t)token_id(row, rows[j]);
    }
    try_candidates(state, &all, rows, 0);
}

/* Let the rows of chunks [begin, end) run. */
static void try_chunks(gumbel_max *state, const logits_row *row, int64_t begin, int64_t end)
{
    for (int64_t chunk = begin; chunk < end; chunk++) {
        if (cannot_win(state, row->scratch->maxima[chunk]))
            continue;
        const int64_t first = chunk * MTP_CHUNK, n = row->n_vocab - first;
        try_chunk(state, row->logits + first, row->token_ids, first, n < MTP_CHUNK ? n : MTP_CHUNK);
    }
}

/* Let every row run that passes the cuts; return the temperature. */
static double try_all(gumbel_max *state, const logits_row *row, const mtp_sampling *sampling,
                      float max, uint64_t total)
{
    if (!has_cuts(sampling)) {
        state->inverse = 1.0 / sampling->temperature;
        try_chunks(state, row, 0, count_chunks(row));
        return sampling->temperature;
    }
    int64_t n;
    int64_t first = cut(row, sampling, max, total, &n);
    const int32_t *order = row->scratch->order;
    const double temperature = temperature_of(row, sampling, max, order + first, n - first);
    state->inverse = 1.0 / temperature;
    for (; first < n; first += MTP_CHUNK)
        try_rows(state, row, order + first, n - first < MTP_CHUNK ? n - first : MTP_CHUNK);
    return temperature;
}

/* Put the best `n` rows into rows[0 .. returned), the one that would be chosen first; `scores` is
 * working memory. */
static int64_t rank_rows(const logits_row *row, const mtp_sampling *sampling, int64_t index,
                         float max, uint64_t total, int64_t n, int32_t *rows, double *scores,
                         double *temperature)
{
    *temperature = 0.0;
    if (sampling->temperature > 0.0) {
        const mtp_noise noise = {sampling->seed, sampling->stream, (uint32_t)index};
        gumbel_max state = {&noise, 0.0, n, 0, scores, rows};
        *temperature = try_all(&state, row, sampling, max, total);
        return state.n;
    }
    const mtp_sampling likeliest = {.top_k = n, .top_p = 1.0, .typical_p = 1.0};
    int64_t end;
    const int64_t first = cut(row, &likeliest, max, total, &end);
    for (int64_t i = first; i < end; i++)
        rows[end - 1 - i] = row->scratch->order[i];
    return end - first;
}

/* See mtp_rank for what a share is. `row->logits[rows[0 .. n)]` are above -inf. */
static void share_out(const logits_row *row, const mtp_sampling *sampling, int64_t index,
                      double temperature, float max, uint64_t total, int64_t n, const int32_t *rows,
                      double *shares)
{
    const mtp_noise noise = {sampling->seed, sampling->stream, (uint32_t)index};
    uint64_t others = total;
    double largest = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const float logit = row->logits[rows[i]];
        others -= mtp_mass(logit, max);
        shares[i] = gap(logit, max);
        if (temperature > 0.0)
            shares[i] += temperature * gumbel(noise_bits(&noise, token_id(row, rows[i])));
        largest = shares[i] > largest ? shares[i] : largest;
    }
    double sum = largest < 700.0 ? (double)others / (double)MTP_MASS_ONE * mtp_exp(-largest) : 0.0;
    for (int64_t i = 0; i < n; i++) {
        shares[i] = shares[i] - largest > -700.0 ? mtp_exp(shares[i] - largest) : 0.0;
        sum += shares[i];
    }
    for (int64_t i = 0; i < n; i++) {
        shares[i] /= sum;
        if (i > 0 && shares[i] > shares[i - 1])
            shares[i] = shares[i - 1]; /* rounding */
    }
}

/* -- one choice, by one thread or several --------------------------------------------------- */

void mtp_choice_begin(mtp_sampler_scratch *scratch, const float *logits, int64_t n_vocab,
                      const mtp_sampling *sampling, const int32_t *history, int64_t n_history,
                      int64_t n_prompt, int64_t index, const int32_t *token_ids,
                      int needs_probability)
{
    scratch->row = (logits_row){logits, n_vocab, token_ids, scratch};
    scratch->sampling = sampling;
    scratch->index = index;
    scratch->needs_total =
        needs_probability ||
        (sampling->temperature > 0.0 &&
         (sampling->top_p < 1.0 || sampling->typical_p < 1.0 || sampling->xtc_probability > 0.0));
    adjust(&scratch->row, sampling, history, n_history, n_prompt);
}

/* The chunks that are one part's. */
typedef struct {
    int64_t begin, end;
} chunks;

static chunks share(const logits_row *row, int i, int n)
{
    const int64_t n_chunks = count_chunks(row);
    return (chunks){n_chunks * i / n, n_chunks * (i + 1) / n};
}

static int64_t count_rows(const logits_row *row, chunks mine)
{
    const int64_t end = mine.end * MTP_CHUNK < row->n_vocab ? mine.end * MTP_CHUNK : row->n_vocab;
    return end > mine.begin * MTP_CHUNK ? end - mine.begin * MTP_CHUNK : 0;
}

void mtp_choice_scan(mtp_sampler_scratch *scratch, int i, int n)
{
    const logits_row *row = &scratch->row;
    const chunks mine = share(row, i, n);
    float *maxima = scratch->maxima;
    passes()->maxima(row->logits + mine.begin * MTP_CHUNK, count_rows(row, mine),
                     maxima + mine.begin);
    int64_t best = mine.begin;
    for (int64_t chunk = mine.begin; chunk < mine.end; chunk++)
        if (maxima[chunk] > maxima[best])
            best = chunk;
    scratch->parts[i].chunk = mine.begin < mine.end ? best : -1;
}

/* The lowest row with the largest logit, -1 if every one is -inf or NaN. */
static int64_t find_top(const mtp_sampler_scratch *scratch, int n)
{
    const float *maxima = scratch->maxima;
    int64_t best = -1;
    for (int i = 0; i < n; i++) {
        const int64_t chunk = scratch->parts[i].chunk;
        if (chunk >= 0 && (best < 0 || maxima[chunk] > maxima[best]))
            best = chunk;
    }
    if (maxima[best] == -INFINITY)
        return -1;
    int64_t row = best * MTP_CHUNK;
    while (scratch->row.logits[row] != maxima[best])
        row++;
    return row;
}

/* A search that has tried `top`: most others cannot win any more. */
static gumbel_max start_search(const mtp_sampler_scratch *scratch, const mtp_noise *noise,
                               int64_t top, double *score, int32_t *winner)
{
    const double inverse = 1.0 / scratch->sampling->temperature;
    const logits_row *row = &scratch->row;
    *score = (double)row->logits[top] * inverse + gumbel(noise_bits(noise, token_id(row, top)));
    *winner = (int32_t)top;
    return (gumbel_max){noise, inverse, 1, 1, score, winner};
}

static mtp_noise noise_of(const mtp_sampler_scratch *scratch)
{
    const mtp_sampling *sampling = scratch->sampling;
    return (mtp_noise){sampling->seed, sampling->stream, (uint32_t)scratch->index};
}

void mtp_choice_search(mtp_sampler_scratch *scratch, int i, int n)
{
    const logits_row *row = &scratch->row;
    const mtp_sampling *sampling = scratch->sampling;
    const chunks mine = share(row, i, n);
    const int64_t top = find_top(scratch, n);
    if (top < 0)
        return;
    part *own = &scratch->parts[i];
    if (scratch->needs_total)
        own->mass = passes()->total_mass(row->logits + mine.begin * MTP_CHUNK,
                                         count_rows(row, mine), row->logits[top]);
    if (sampling->temperature > 0.0 && !has_cuts(sampling)) {
        const mtp_noise noise = noise_of(scratch);
        gumbel_max state = start_search(scratch, &noise, top, &own->score, &own->winner);
        try_chunks(&state, row, mine.begin, mine.end);
    }
}

static int64_t find_winner(const mtp_sampler_scratch *scratch, int64_t top, uint64_t total, int n)
{
    const mtp_sampling *sampling = scratch->sampling;
    if (sampling->temperature == 0.0)
        return top;
    const mtp_noise noise = noise_of(scratch);
    double score;
    int32_t winner;
    gumbel_max state = {&noise, 0.0, 1, 0, &score, &winner};
    if (has_cuts(sampling))
        try_all(&state, &scratch->row, sampling, scratch->row.logits[top], total);
    else
        for (int i = 0; i < n; i++)
            enter(&state, scratch->parts[i].score, scratch->parts[i].winner);
    return winner;
}

int32_t mtp_choice_end(mtp_sampler_scratch *scratch, int n, float *probability)
{
    const logits_row *row = &scratch->row;
    const int64_t top = find_top(scratch, n);
    if (top < 0) {
        if (probability)
            *probability = 0.0f;
        return MTP_NO_TOKEN;
    }
    uint64_t total = 0;
    if (scratch->needs_total)
        for (int i = 0; i < n; i++)
            total += scratch->parts[i].mass;
    const int64_t chosen = find_winner(scratch, top, total, n);
    if (probability) {
        const uint64_t mass = mtp_mass(row->logits[chosen], row->logits[top]);
        *probability = (float)((double)mass / (double)total);
    }
    return token_id(row, chosen);
}

int32_t mtp_choose(const float *logits, int64_t n_vocab, const mtp_sampling *sampling,
                   const int32_t *history, int64_t n_history, int64_t n_prompt, int64_t index,
                   const int32_t *token_ids, mtp_sampler_scratch *scratch, float *probability)
{
    mtp_choice_begin(scratch, logits, n_vocab, sampling, history, n_history, n_prompt, index,
                     token_ids, probability != NULL);
    mtp_choice_scan(scratch, 0, 1);
    mtp_choice_search(scratch, 0, 1);
    return mtp_choice_end(scratch, 1, probability);
}

int64_t mtp_rank(const float *logits, int64_t n_vocab, const mtp_sampling *sampling,
                 const int32_t *history, int64_t n_history, int64_t n_prompt, int64_t index,
                 const int32_t *token_ids, mtp_sampler_scratch *scratch, int64_t n, int32_t *ids,
                 float *probabilities, double *shares)
{
    mtp_choice_begin(scratch, logits, n_vocab, sampling, history, n_history, n_prompt, index,
                     token_ids, 1);
    mtp_choice_scan(scratch, 0, 1);
    const logits_row row = scratch->row;
    const int64_t top = find_top(scratch, 1);
    if (top < 0)
        return 0;
    const float max = row.logits[top];
    const uint64_t total = passes()->total_mass(row.logits, n_vocab, max);
    double temperature;
    n = rank_rows(&row, sampling, index, max, total, n, ids, shares, &temperature);
    share_out(&row, sampling, index, temperature, max, total, n, ids, shares);
    for (int64_t i = 0; i < n; i++) {
        probabilities[i] = (float)((double)mtp_mass(row.logits[ids[i]], max) / (double)total);
        ids[i] = token_id(&row, ids[i]);
    }
    return n;
}
