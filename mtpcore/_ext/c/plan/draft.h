/* Schedules: stages of plans with choices of tokens in between, in one parallel region.
 *
 * See backends/schedule.py for what stages, fills and picks mean, and backends/draft.py for the same
 * loop in Python.
 */
#ifndef MTPCORE_DRAFT_H
#define MTPCORE_DRAFT_H

#include "plan/fused_sampling.h"

enum { MTP_MOST_SLOTS = 8, MTP_KNOWN = -1, MTP_OF_DRAFT = -2, MTP_CHOICE = -1, MTP_BEST = -2 };

/* What row `row` of a stage gets: the token of `draft`, or none (MTP_KNOWN); and for its slots what
 * `stage` made for its output `output`, or the stage that chose the draft (MTP_OF_DRAFT), or
 * nothing (MTP_KNOWN). */
typedef struct {
    int32_t row, draft, stage, output;
} mtp_fill;

/* Output `output` of a stage chooses `draft`: its sampler's choice (MTP_CHOICE), or what it ranks. */
typedef struct {
    int32_t output, draft, rank;
} mtp_pick;

/* Drafts that are the best of others: of `candidates`, numbers of drafts, the n_drafts best. */
typedef struct {
    int32_t *candidates, *drafts;
    int64_t n_candidates, n_drafts;
    int32_t goes_on;     /* whether they are read: candidates without an embedding do not count */
    int32_t stage, pick; /* that chooses the last candidate */
} mtp_best;

/* An output whose rows feed slots of later stages, by its number among the names of all. */
typedef struct {
    int32_t buffer; /* -1: the stage does not make it */
    int32_t axis;   /* of its rows */
    int64_t width;
    int64_t column; /* of a row of `kept` */
} mtp_made;

/* A part of a slot, by its number among the stage's: which name fills it from `column` on. */
typedef struct {
    int32_t slot, name;
    int64_t column;
} mtp_feed;

typedef struct {
    int32_t buffer;
    int64_t width;
    const float *given; /* [n_rows][width], or NULL */
    float *rows;        /* [n_rows][width] that the stage reads */
} mtp_slot;

/* A text that gets drafts. */
typedef struct {
    const mtp_sampling *settings;
    mtp_sampler_scratch *scratch;
    int32_t *history; /* n_history tokens, then room for a path of drafts */
    int64_t n_history, n_prompt;
    int64_t index; /* of the first draft */
    double p_min;
    int can_fuse; /* whether sampling may be fused into the output matmul */
} mtp_text;

typedef struct {
    int32_t text;
    int32_t parent;        /* the draft before it, -1: none; MTP_BEST until it is found */
    int32_t depth;         /* how many come before it */
    int32_t is_anew;       /* whether a stage that repeats chooses it: p_min is asked last */
    int32_t token;         /* -1: none */
    int32_t stage, output; /* that chose it */
    int32_t is_open;       /* whether the stage at hand may choose it; -1: it does not */
    int32_t best_of;       /* the candidate that it is, or itself */
    float probability;
    double worth; /* the product of the shares on the way to it */
} mtp_draft_token;

typedef struct {
    const mtp_plan *plan;
    mtp_run *run; /* of stages of one plan it is the same */
    mtp_fused_sampling sampling;
    mtp_fill *fills; /* by row */
    int64_t n_fills;
    mtp_pick *picks;
    int64_t n_picks;
    mtp_slot slots[MTP_MOST_SLOTS];
    int64_t n_slots;
    mtp_feed feeds[MTP_MOST_SLOTS];
    int64_t n_feeds;
    mtp_made *made; /* [n_names] */
    int64_t repeats;
    int runs_whole, ends_at_nan;
    int is_given; /* whether the run has its rows already, and it has no fills */
    /* The batch, and the row that each comes after, -1: none; of a tree as the batch says, and as
     * it is with these drafts. */
    int64_t n_rows, n_outputs, n_axes;
    int is_tree;
    int32_t *tokens, *seq, *place, *positions, *outputs, *parent, *before;
    int32_t *until; /* or NULL */
    /* Of each output, as it was run: its number, -1 where it was left out, and its row. */
    int32_t *at, *row;
    int8_t *is_finite; /* what it made for the stage at hand; -1: nobody has looked */
    float *kept;       /* [n_outputs][kept_width] of what it made, where its plan runs again before
                        * that is read; else NULL */
    int64_t kept_width;
    int64_t n_composed; /* rows when it was composed last */
    int can_fuse, has_run;
} mtp_stage;

/* Everything in it was checked. */
typedef struct {
    mtp_text *texts;
    int64_t n_texts;
    mtp_draft_token *drafts;
    int64_t n_drafts;
    mtp_best *bests; /* in the order in which they are found */
    int64_t n_bests, n_found;
    int32_t *members; /* all their candidates and drafts */
    mtp_stage *stages;
    int64_t n_stages;
    int64_t n_names, n_logits;
    int64_t n_tokens; /* that have embeddings where drafts are read; 0: none are read */
    /* The rows of the stage that runs, where it has fills; [most rows]: */
    int32_t *tokens, *seq, *place, *positions, *parent, *until, *outputs;
    int32_t *is_dead, *row_at; /* while it is composed */
    int32_t *row_of; /* [n_drafts]: the row of the stage at hand that a draft has, or -1 */
    /* What an output ranks; [n_ranked], at least 1: */
    int64_t n_ranked;
    int32_t *ids;
    float *probabilities;
    double *shares;
} mtp_schedule;

/* Lay out what the loop reads and writes, with room for histories of up to `most` tokens. The
 * stages say how many rows, outputs, fills, picks and kept columns they have, `n_members` how many
 * candidates and drafts all the bests have. Returns its bytes; where memory is NULL that is all. */
size_t mtp_schedule_lay_out(mtp_schedule *schedule, int64_t most, int64_t n_members, char *memory);

/* Run all stages, or until the run is interrupted. */
void mtp_schedule_run(mtp_schedule *schedule);

#endif
