/* The sampler: which token a row of logits chooses.
 *
 * chain    logit bias, penalties (repetition over prompt and text; frequency and presence over the
 *          text; of both the latest penalty_last_n tokens), DRY (dry.h), mask; then cuts by
 *          p = softmax at temperature 1 over what is left, never normalised again: logits at most
 *          top_n_sigma standard deviations below the largest; of these the top_k largest; of these
 *          those whose -log p is nearest to its mean, as many as it takes until p sums up to
 *          typical_p; of these the shortest prefix in descending order whose sum of p reaches
 *          top_p; of these p >= min_p times the largest p; of these, by the toss of a coin, all but
 *          the least likely of those with p >= xtc_threshold are left out (XTC). Equal p: lower row
 *          first.
 * choice   argmax over the survivors of logit / temperature + noise (ties: the lowest row), which
 *          draws from softmax(logit / temperature). Temperature 0: the largest logit, whatever the
 *          cuts. With a dynatemp_range the temperature depends on the survivors' entropy
 *          (temperature.h).
 * noise    -log(-log u), u = (the upper 52 of 64 bits + 1/2) 2^-52, the bits being the first two
 *          words of Philox4x32-10 with key = seed, counter = (token id, index, stream low, stream
 *          high). It depends on nothing else: two models that choose for the same position with
 *          the same seed share it, and then agree as often as their distributions allow (Daliri,
 *          Musco, Suresh, "Coupling without communication and drafter-invariant speculative
 *          decoding", 2024). The coin of XTC is the u of token id 2^32 - 1, which is none.
 *
 * A NaN logit counts as -inf. Where every logit is -inf nothing is left to choose, and the choice is
 * MTP_NO_TOKEN. The result has the same bits on every machine. */
#ifndef MTPCORE_SAMPLER_H
#define MTPCORE_SAMPLER_H

#include <stdint.h>

enum { MTP_NO_TOKEN = -2 }; /* -1 stands for rows that nobody chooses from */

/* Don't repeat yourself; see dry.h. */
typedef struct {
    double multiplier;        /* 0: none */
    double base;              /* 1 or more */
    int64_t allowed_length;   /* 0 or more */
    int64_t last_n;           /* -1: all tokens */
    const uint32_t *breakers; /* bit id % 32 of word id / 32: the token breaks repetitions */
    int64_t n_spelled;        /* breakers of several tokens: their number, */
    const int32_t *spelled;   /* and of each its length and its tokens */
} mtp_dry;

/* Settings, checked by the caller. A token id is always one of the target's vocabulary. */
typedef struct {
    double temperature;        /* 0, or at least 1e-30 */
    int64_t top_k;             /* 0: all */
    double top_p;              /* in (0, 1]; 1: all */
    double min_p;              /* in [0, 1] */
    double top_n_sigma;        /* 0: all */
    double typical_p;          /* in (0, 1]; 1: all */
    double xtc_probability;    /* in [0, 1]; 0: never */
    double xtc_threshold;      /* in [0, 1] */
    double dynatemp_range;     /* 0: the temperature is always the same */
    double dynatemp_exponent;  /* 0 or more */
    double repetition_penalty; /* above 0; 1: none */
    double frequency_penalty, presence_penalty;
    int64_t penalty_last_n; /* -1: all tokens */
    mtp_dry dry;
    int64_t n_bias;
    const int32_t *bias_ids; /* distinct */
    const float *bias;
    uint64_t seed, stream;
    const uint32_t *mask; /* bit id % 32 of word id / 32 allows token id; NULL: all allowed */
} mtp_sampling;

/* Working memory of one choice at a time; a thread of its own needs one of its own. */
typedef struct mtp_sampler_scratch mtp_sampler_scratch;

/* For rows of up to n_vocab logits and token ids in [0, n_ids); NULL if there is no memory. */
mtp_sampler_scratch *mtp_sampler_scratch_new(int64_t n_vocab, int64_t n_ids);
void mtp_sampler_scratch_free(mtp_sampler_scratch *scratch);

/* Choose the token with position `index` in its sequence (in [0, 2^32)).
 *
 * history      n_history tokens before it, of which the first n_prompt are the prompt; ids out of
 *              range are passed over. Only penalties read it.
 * token_ids    NULL, or the target's token id of each row (a draft vocabulary)
 * probability  NULL, or where to put p of the chosen token: its share in softmax at temperature 1
 *              after bias, penalties and mask, before the cuts
 *
 * Returns a token id, or MTP_NO_TOKEN. Nothing is allocated. */
int32_t mtp_choose(const float *logits, int64_t n_vocab, const mtp_sampling *sampling,
                   const int32_t *history, int64_t n_history, int64_t n_prompt, int64_t index,
                   const int32_t *token_ids, mtp_sampler_scratch *scratch, float *probability);

/* The same choice by n threads, MTP_CHOICE_PARTS at most: one begins; each scans its part i of
 * the row; when all have, each searches its part for the winner; when all have, one ends.
 * Largest logits, sums of whole numbers and winners are the same however the row is divided, and
 * so is the token. */
enum { MTP_CHOICE_PARTS = 16 };
void mtp_choice_begin(mtp_sampler_scratch *scratch, const float *logits, int64_t n_vocab,
                      const mtp_sampling *sampling, const int32_t *history, int64_t n_history,
                      int64_t n_prompt, int64_t index, const int32_t *token_ids,
                      int needs_probability);
void mtp_choice_scan(mtp_sampler_scratch *scratch, int i, int n);
void mtp_choice_search(mtp_sampler_scratch *scratch, int i, int n);
/* `probability` as for mtp_choose; NULL unless the choice began with needs_probability. */
int32_t mtp_choice_end(mtp_sampler_scratch *scratch, int n, float *probability);

/* A choice in one pass over pieces of a row, while they are computed: fused sampling. */
typedef struct {
    double score; /* of the running winner */
    int64_t row;  /* of logits; -1: none yet */
} mtp_winner;

/* Whether settings allow it: no bias, penalties or mask, and no cuts that matter. */
int mtp_can_fuse(const mtp_sampling *sampling);

/* Take in rows first .. first + n, whose logits follow each other; before any, the running
 * winner is {-INFINITY, -1}. Pieces of one winner come in ascending order. */
void mtp_fused_piece(const mtp_sampling *sampling, int64_t index, const int32_t *token_ids,
                     const float *logits, int64_t first, int64_t n, mtp_winner *winner);

/* The better of two; the token of the best of all pieces, or MTP_NO_TOKEN, is what mtp_choose
 * returns. */
mtp_winner mtp_better_of(mtp_winner a, mtp_winner b);
int32_t mtp_winning_token(mtp_winner winner, const int32_t *token_ids);

/* Rank the `n` best tokens for that position: the one that mtp_choose returns, then those that it
 * would return in turn were the ones before them not there. At temperature 0 these are the largest
 * logits; above it the cuts leave no others.
 *
 * ids           [n] token ids, best first
 * probabilities [n] as mtp_choose gives them
 * shares        [n] how much of the choice is each token's, if logits are not quite what they
 *               seem: p e^(temperature * noise) over the sum of that for all ranked tokens and of p
 *               for all others, p as above. Never rising. At temperature 0 a share is p.
 *
 * Returns how many there are: 0 .. n. Nothing is allocated. */
int64_t mtp_rank(const float *logits, int64_t n_vocab, const mtp_sampling *sampling,
                 const int32_t *history, int64_t n_history, int64_t n_prompt, int64_t index,
                 const int32_t *token_ids, mtp_sampler_scratch *scratch, int64_t n, int32_t *ids,
                 float *probabilities, double *shares);

/* The Gumbel noise of one token. */
double mtp_gumbel(uint64_t seed, uint64_t stream, int64_t index, int32_t token_id);

#endif
