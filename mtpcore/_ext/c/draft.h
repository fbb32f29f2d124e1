/* The draft loop: passes of a plan with a choice of tokens after each, in one parallel region. */
#ifndef MTPCORE_DRAFT_H
#define MTPCORE_DRAFT_H

#include "choices.h"

enum { MTP_MOST_RECYCLED = 8 };

/* An output whose row feeds a slot of the next pass. */
typedef struct {
    int32_t slot, output; /* buffers */
    int32_t axis;         /* of the output's rows */
    int64_t width;
    float *rows; /* [n_seqs][width] for the passes after the first */
} mtp_recycle;

typedef struct {
    const mtp_sampling *settings;
    mtp_sampler_scratch *scratch;
    int32_t *history; /* n_history tokens, then room for k drafts */
    int64_t n_history, n_prompt, k, n_drafts;
    double p_min;
} mtp_draft_sequence;

/* Everything in it was checked. Sequence i's newest row is the i-th output of the first pass. */
typedef struct {
    mtp_draft_sequence *sequences;
    int64_t n_sequences;
    mtp_choices choices; /* whose choosers the loop names */
    int64_t n_logits;
    int64_t n_tokens; /* that have embeddings; 0: none are read */
    mtp_recycle recycled[MTP_MOST_RECYCLED];
    int64_t n_recycled;
    /* Rows of the passes after the first, [n_sequences] each: */
    int32_t *tokens, *positions, *seq, *place, *outputs;
    int32_t *active; /* the sequence of each row of logits; all of them at first */
} mtp_draft;

/* Lay out what the loop writes for n_sequences with histories of up to `most` tokens, positions of
 * n_axes, and what is recycled. Returns its bytes; where memory is NULL that is all. */
size_t mtp_draft_lay_out(mtp_draft *draft, int64_t most, int64_t n_axes, char *memory);

/* Draft until every sequence has ended; the drafts follow each history. */
void mtp_plan_draft(const mtp_plan *plan, mtp_run *run, mtp_draft *draft);

#endif
