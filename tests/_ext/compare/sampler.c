/* Choices of the sampler: their tokens and probabilities. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare.h"
#include "sampler/passes.h"
#include "sampler/sampler.h"

enum { MOST_LOGITS = 5003, RANKED = 8 };

typedef struct {
    mtp_sampling sampling;
    const float *logits;
    int64_t n_vocab;
} choice;

typedef struct {
    int32_t token, fused, n_ranked, ids[RANKED];
    float probability, probabilities[RANKED];
    double shares[RANKED];
} chosen;

static void choose(const void *of, void *results)
{
    const choice *c = of;
    mtp_sampler_scratch *scratch = mtp_sampler_scratch_new(MOST_LOGITS, MOST_LOGITS);
    chosen found;
    memset(&found, 0, sizeof found);
    static const int32_t text[] = {1, 2, 0, 1, 2, 5, 0, 1, 2};
    const int64_t n_text = sizeof text / sizeof *text;
    found.token = mtp_choose(c->logits, c->n_vocab, &c->sampling, text, n_text, 3, 17, NULL,
                             scratch, &found.probability);
    found.n_ranked =
        (int32_t)mtp_rank(c->logits, c->n_vocab, &c->sampling, text, n_text, 3, 17, NULL, scratch,
                          RANKED, found.ids, found.probabilities, found.shares);
    if (mtp_can_fuse(&c->sampling)) {
        mtp_winner winner = {-INFINITY, -1};
        mtp_fused_piece(&c->sampling, 17, NULL, c->logits, 0, c->n_vocab, &winner);
        found.fused = mtp_winning_token(winner, NULL);
    }
    memcpy(results, &found, sizeof found);
    mtp_sampler_scratch_free(scratch);
}

#define NEUTRAL .top_p = 1, .typical_p = 1, .repetition_penalty = 1, .penalty_last_n = -1

static const mtp_sampling settings[] = {
    {NEUTRAL, .temperature = 0},
    {NEUTRAL, .temperature = 1, .seed = 3},
    {NEUTRAL, .temperature = 0.7, .top_k = 40, .min_p = 0.001, .seed = 1u << 31},
    {.temperature = 3,
     .top_p = 0.9,
     .typical_p = 0.95,
     .repetition_penalty = 1.2,
     .penalty_last_n = 5,
     .seed = ~(uint64_t)0,
     .stream = 9},
    {NEUTRAL, .temperature = 1, .min_p = 0.02, .seed = 5},
    {NEUTRAL, .temperature = 1, .top_n_sigma = 1.5, .seed = 6},
    {NEUTRAL, .temperature = 1, .xtc_probability = 0.5, .xtc_threshold = 0.01, .seed = 7},
    {NEUTRAL, .temperature = 1, .dynatemp_range = 0.7, .dynatemp_exponent = 1.3, .seed = 8},
    {NEUTRAL, .temperature = 1, .dry = {0.8, 1.75, 1, -1, NULL, 0, NULL}, .seed = 9},
};

void compare_choices(void)
{
    static const int64_t sizes[] = {1, 15, 64, 65, 1000, MOST_LOGITS};
    static float logits[MOST_LOGITS];
    for (int wild = 0; wild < 3; wild++) /* tame; with infinities and the like; all alike */
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
                for (int64_t id = 0; id < sizes[s]; id++)
                    logits[id] = wild == 2                             ? 1.5f
                                 : wild == 1 && random_word() % 9 == 0 ? -INFINITY
                                 : wild == 1 && random_word() % 9 == 0 ? NAN
                                                                       : 4 * random_float();
                const choice c = {settings[i], logits, sizes[s]};
                char what[100];
                snprintf(what, sizeof what, "choice %zu of %d logits, %d", i, (int)sizes[s], wild);
                compare(what, choose, &c, sizeof(chosen), EVERY_BIT);
            }
}
