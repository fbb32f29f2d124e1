/* Schedules: stages of plans with choices of tokens in between, in one parallel region.
 *
 * See backends/schedule.py for what stages, fills and picks mean, and backends/draft.py for the same
 * loop in Python.
 */
#ifndef MTPCORE_DRAFT_H
#define MTPCORE_DRAFT_H

#include "plan/fused_sampling.h"

enum { MTP_KNOWN = -1, MTP_OF_DRAFT = -2, MTP_CHOICE = -1, MTP_BEST = -2 };
enum { MTP_GIVEN, MTP_CHAIN, MTP_TREE };

/* A row of a stage, `ahead` of output `output` of its pass, and what it gets: the token of `draft`, or
 * none (MTP_KNOWN); and for its slots what `stage` kept of its output `source`, or of the one that
 * chose the draft (MTP_OF_DRAFT), or nothing (`stage` is MTP_KNOWN). */
typedef struct {
    int32_t output, ahead, draft, stage, source;
    int32_t row; /* of these texts */
} mtp_fill;

/* Rows as a batch has them, and which row each comes after, -1: none; of a tree as its batch says
 * (`parent`), and as it is with the drafts that rows get (`before`). */
typedef struct {
    int64_t n, n_outputs, n_axes;
    int is_tree, has_spans;
    int32_t *tokens, *seq, *place, *positions, *outputs, *parent, *before, *until;
} mtp_rows;

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

/* An output of a graph, and the axis of its rows. */
typedef struct {
    int32_t buffer, axis;
    int64_t width;
} mtp_part;

/* What a stage keeps of its outputs for slots of later stages: parts of a row, side by side. */
typedef struct {
    mtp_part *parts;
    int64_t n_parts, width;
    float *rows;       /* [n_outputs][width]; NULL: no stage reads them */
    int8_t *is_finite; /* [n_outputs] */
} mtp_kept;

typedef struct {
    int32_t buffer;
    int32_t kind; /* of kept rows that feed it; -1: none do */
    int64_t width;
    const float *given; /* those of the pass [its rows][width], or NULL */
    float *rows;        /* [n_rows][width] that the stage reads; NULL: those of the batch */
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
    int32_t stage, output; /* that choose it; nobody asks for the stage while it runs */
    int32_t is_open;       /* whether the stage at hand may choose it; -1: it does not */
    int32_t best_of;       /* the candidate that it is, or itself */
    float probability;
    double worth; /* the product of the shares on the way to it */
} mtp_draft_token;

typedef struct {
    const mtp_plan *plan;
    mtp_run *run; /* of stages of one plan it is the same */
    mtp_fused_sampling sampling;
    const mtp_rows *given; /* those of the pass */
    int form;              /* MTP_GIVEN: it has these; else new ones, one for each fill */
    mtp_fill *told;
    int64_t n_told;
    mtp_fill *fills; /* of rows that are there, by row */
    int64_t n_fills;
    mtp_pick *picks;
    int64_t n_picks;
    mtp_slot *slots;
    int64_t n_slots;
    mtp_kept *kept; /* [n_kinds] */
    int64_t repeats;
    int runs_whole, ends_at_nan;
    mtp_rows rows;
    int32_t *at; /* of each output, its number as it was run; -1 where it was left out */
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
    mtp_stage *stages;
    int64_t n_stages;
    int64_t n_kinds; /* of kept rows */
    int keeps_logits;
    int64_t n_logits;
    int64_t n_tokens;          /* that have embeddings where drafts are read; 0: none are read */
    mtp_rows rows;             /* of the stage that runs, as many as any has */
    int32_t *is_dead, *row_at; /* while it is composed, as many */
    int32_t *row_of; /* [n_drafts]: the row of the stage at hand that a draft has, or -1 */
    /* What an output ranks; [the most]: */
    int32_t *ids;
    float *probabilities;
    double *shares;
} mtp_schedule;

/* The newest row before row `row` of its sequence, or -1. */
int64_t mtp_row_before(const mtp_rows *rows, int64_t row);

/* Write a stage's rows, and say which row each fill is of; returns the first fill that is not in the
 * rows' order, or -1. */
int64_t mtp_stage_place(mtp_stage *stage);

/* Let a run have the first rows of these. */
void mtp_run_take(mtp_run *run, const mtp_rows *rows, int64_t n, int64_t n_outputs);

/* Run all stages, or until the run is interrupted. */
void mtp_schedule_run(mtp_schedule *schedule);

#endif
