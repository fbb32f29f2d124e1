/* The draft loop: passes of plans with a choice of tokens after each, in one parallel region.
 *
 * Either one plan runs again and again, each pass with the rows that the one before it made; or
 * each draft has a plan of its own, whose rows were laid out beforehand: those of a sequence end
 * with the drafts before its own, and the loop fills these in.
 */
#ifndef MTPCORE_DRAFT_H
#define MTPCORE_DRAFT_H

#include "plan/fused_sampling.h"

enum { MTP_MOST_RECYCLED = 8 };

/* What feeds a slot of the draft's own row: an output's row, or rows that are known beforehand. */
typedef struct {
    int32_t slot, output; /* buffers */
    int32_t axis;         /* of the output's rows */
    int64_t width;
    const float *given; /* [n_sequences][n_given][width], in place of an output; or NULL */
    int64_t n_given;    /* passes that it has rows for, the first among them */
    float *rows;        /* [n_rows][width] of the slot, that the loop writes */
} mtp_recycle;

typedef struct {
    const mtp_sampling *settings;
    mtp_sampler_scratch *scratch;
    int32_t *history;                         /* n_history tokens, then room for k drafts */
    int64_t n_history, n_prompt, k, n_drafts; /* k falls to n_drafts where drafts end early */
    int64_t index;                            /* of the first draft */
    double p_min;
    int is_fused; /* whether sampling is fused into the output matmul */
} mtp_draft_sequence;

/* A plan and its batch, each row of logits of another sequence; at first sequence i's newest row
 * is output i. */
typedef struct {
    const mtp_plan *plan;
    mtp_run *run;
    mtp_fused_sampling sampling; /* whose choosers the loop names */
    mtp_recycle recycled[MTP_MOST_RECYCLED];
    int64_t n_rows;  /* that the loop writes */
    int32_t *tokens; /* [n_rows] */
    int32_t *active; /* [outputs] the sequence of each row of logits */
} mtp_draft_pass;

/* Everything in it was checked. */
typedef struct {
    mtp_draft_sequence *sequences;
    int64_t n_sequences;
    mtp_draft_pass *passes; /* one: it is repeated */
    int64_t n_passes;
    int64_t n_run; /* how many ran */
    int64_t n_logits;
    int64_t n_tokens; /* that have embeddings; 0: none are read */
    int64_t n_recycled;
    int in_place; /* whether rows of a repeated pass stay at the place and positions of the first */
    /* What else a repeated pass reads, [n_sequences] each: */
    int32_t *positions, *seq, *place, *outputs;
    /* What each row of a pass chose, and where p_min asks for it how probable that is: */
    int32_t *chosen;
    float *probabilities;
} mtp_draft;

/* Lay out what the loop writes for n_sequences with histories of up to `most` tokens, positions of
 * n_axes, and the rows of each pass. Returns its bytes; where memory is NULL that is all. */
size_t mtp_draft_lay_out(mtp_draft *draft, int64_t most, int64_t n_axes, char *memory);

/* Draft until every sequence has ended, or the run is interrupted; the drafts follow each history. */
void mtp_draft_run(mtp_draft *draft);

#endif
