/* Operations that move rows or call the matmul kernels; they are the same on every machine. */
#ifndef MTPCORE_ROWS_H
#define MTPCORE_ROWS_H

#include "plan/plan.h"

#define MTP_DECLARE(name) void name(const mtp_op *, const mtp_run *, int thread, int n_threads)

/* out = row tokens[t] of the matrix, times f where n[1]; where that is -1 row n[0] - 1, or where n[0]
 * is 0 row t of in[0] as it is. Where n[2], the matrix has so many parts of n[3] rows, the first of
 * n[5], and the row's position says which: see mtp_part_of, n[4] is the first. A token that its part
 * lacks gives zeros. */
MTP_DECLARE(mtp_op_embed);
/* out = the row of the matrix that the row's position on the first axis names, zeros where none is */
MTP_DECLARE(mtp_op_embed_positions);
/* out = the sum of rows of the matrix, from 0 and in order: of part i, which has n[0] rows, the first
 * n[1], the one that code i of in[0] (int32) names. A code that names none adds nothing. */
MTP_DECLARE(mtp_op_embed_codes);
/* out = for each id that find_best found, in[0], the row of the matrix */
MTP_DECLARE(mtp_op_embed_ids);
/* out = row t of in[0] where tokens[t] is -1, else zeros */
MTP_DECLARE(mtp_op_embedding_rows);
/* out = in[0] */
MTP_DECLARE(mtp_op_copy);
/* out = rows `outputs` of in[0] */
MTP_DECLARE(mtp_op_take);
/* out = in[0] as matrices want it: n[0] is an MTP_ACT_*. */
MTP_DECLARE(mtp_op_prepare);
/* out = matrix times in[0] (prepared) + weights[0]. The matmuls of a group share their threads'
 * work: this one has units n[0] and following of n[1]; a unit is n[2] outputs, whole groups. The
 * run's epilogue gets the results instead where it asks for them. */
MTP_DECLARE(mtp_op_matmul);
/* out = cosines, then sines, of positions[axes[i]] * numbers[i] for i < n[0], all times
 * numbers[n[0]]. */
MTP_DECLARE(mtp_op_angles);
/* out = the groups of the experts in in[0] (int32), n[1] of n[0] each. */
MTP_DECLARE(mtp_op_group_ids);
/* out = the ids in[0] (int32) of the batch's rows where they are one of 0..n[0]-1, else n[0]. */
MTP_DECLARE(mtp_op_given_ids);
/* out = id n[1] of in[0] (int32, below n[0]) times n[2], plus the ids in[1], which are below that;
 * where it is n[0] - 1, the last one, that times n[2] alone. */
MTP_DECLARE(mtp_op_pair_ids);
MTP_DECLARE(mtp_op_token_ids);
/* out = the rows of each expert by the ids in[0]: see mtp_expert_list_words; n[0] experts. */
MTP_DECLARE(mtp_op_sort_by_expert);
/* out = the lists of an expert for each head, which every row uses at the rank of its number. */
MTP_DECLARE(mtp_op_sort_by_head);
/* out = the lists of an expert for each row, by mtp_part_of: n[0] experts, n[1] is the first. */
MTP_DECLARE(mtp_op_sort_by_position);
/* out = rows of in[0] by the lists in[1], prepared for each expert; n[0] experts, n[1] is an
 * MTP_ACT_*; where n[2], in[0] has a row for each of an expert's ranks. */
MTP_DECLARE(mtp_op_prepare_by_expert);
/* out is -infinity but for the columns of the clusters in[1], whose values in[0] holds: cluster c has
 * n[0] of them, axes[c * n[0]] and on; there are n[1] clusters. */
MTP_DECLARE(mtp_op_scatter);
/* out = matrices[id] times in[0] (prepared by expert), by the lists in[1]; n[0] experts. */
MTP_DECLARE(mtp_op_expert_matmul);

/* Which of n parts a row of the batch takes: its position on the first axis, counted from `first`;
 * the nearest one where there is none. */
static inline int64_t mtp_part_of(const mtp_run *run, int64_t row, int64_t first, int64_t n)
{
    const int64_t part = run->positions[row * run->n_axes] - first;
    return part < 0 ? 0 : part < n ? part : n - 1;
}

/* Slots (row * n_used + rank) and rows by expert: begin[n_experts + 1], slots, rows. */
static inline int64_t mtp_expert_list_words(int64_t n_experts, int64_t n_slots)
{
    return n_experts + 1 + 2 * n_slots;
}

/* How a matmul of n rows with an operation's weights prefetches them. */
static inline mtp_fetch_watch mtp_watch_fetch(const mtp_op *op, const mtp_run *run, int64_t n,
                                              int thread)
{
    if (op->fetch == 0)
        return (mtp_fetch_watch){run->fetch_way, 0, NULL};
    return mtp_fetch_begin(run->fetch + (op->fetch - 1) * MTP_FETCH_CLASSES, n, thread);
}

#endif
