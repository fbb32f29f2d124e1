/* The draft loop: passes of plans with a choice of tokens after each, in one parallel region.
 *
 * Either one plan runs again and again, each pass with the rows that the one before it made; or
 * each draft has a plan of its own, whose rows were laid out beforehand: those of a sequence end
 * with the drafts before its own, and the loop fills these in; or one pass runs a block. Its rows
 * choose all drafts, or feed those of a post-head, which has a pass for each draft, or some that
 * choose all drafts anew, until a pass changes none.
 */
#ifndef MTPCORE_DRAFT_H
#define MTPCORE_DRAFT_H

#include "plan/fused_sampling.h"

enum { MTP_MOST_RECYCLED = 8 };

/* What feeds a slot with an output's row, or a part of the slot where several outputs do. */
typedef struct {
    int32_t slot, output; /* buffers: of the plan that reads, and of the one that makes */
    int32_t axis;         /* of the output's rows */
    int64_t width;
    int64_t column, stride; /* of the slot's rows: where the part begins, and their width */
    float *rows;            /* [n_rows][stride] of the slot, that the loop writes */
} mtp_recycle;

typedef struct {
    const mtp_sampling *settings;
    mtp_sampler_scratch *scratch;
    int32_t *history;                         /* n_history tokens, then room for k drafts */
    int64_t n_history, n_prompt, k, n_drafts; /* k falls to where drafts end early */
    int64_t index;                            /* of the first draft */
    double p_min;
    int can_fuse; /* whether sampling may be fused into the output matmul */
    int64_t at;   /* the first row of a pass's logits that chooses for it */
    /* Of a block's outputs, which are a post-head's rows: its first, and that of its first draft. */
    int64_t begin, first;
} mtp_draft_sequence;

/* A plan and its batch. At first the newest row of sequence i is output i, if it is no block. */
typedef struct {
    const mtp_plan *plan;
    mtp_run *run;
    mtp_fused_sampling sampling; /* whose choosers the loop names */
    mtp_recycle recycled[MTP_MOST_RECYCLED];
    int64_t n_recycled; /* that it makes for later passes */
    int64_t n_rows;     /* that the loop writes */
    int32_t *tokens;    /* [n_rows] */
    int32_t *active;    /* [outputs] the sequence that each row of logits chooses for, or -1 */
    int can_fuse;
} mtp_draft_pass;

/* Everything in it was checked. */
typedef struct {
    mtp_draft_sequence *sequences;
    int64_t n_sequences;
    mtp_draft_pass *passes; /* one: it is repeated; of a block: it, and its post-head */
    int64_t n_passes;
    int64_t n_run; /* how many ran */
    int64_t n_logits;
    int64_t n_tokens; /* that have embeddings; 0: none are read */
    int in_place; /* whether rows of a repeated pass stay at the place and positions of the first */
    int is_block;
    int64_t most_passes; /* of a post-head that chooses all drafts in each; 0: one in each */
    mtp_run rows;        /* of a post-head, all */
    /* What else a pass reads whose rows the loop writes: */
    int32_t *positions, *seq, *place, *outputs;
    float *probabilities; /* of what each row of a pass chose, where p_min asks for it */
} mtp_draft;

/* Lay out what the loop writes for n_sequences with histories of up to `most` tokens, positions of
 * n_axes, and the rows of each pass. Returns its bytes; where memory is NULL that is all. */
size_t mtp_draft_lay_out(mtp_draft *draft, int64_t most, int64_t n_axes, char *memory);

/* Draft until every sequence has ended, or the run is interrupted; the drafts follow each history. */
void mtp_draft_run(mtp_draft *draft);

#endif
