/* A plan: operations on buffers, run by all threads of a pool, batch after batch.
 *
 * Operations are records of one size, in an order that was settled when the plan was made; a run
 * walks them without branches on names, without Python and without allocation. The number of rows
 * is a field of the run.
 *
 * How work is shared so that few barriers are needed (backends/cpu/sharing.py decides):
 *   by rows     whole units of MTP_UNIT rows for each thread; up to one unit belongs to thread 0;
 *   in copies   up to one unit of rows is computed by every thread for itself, in a copy of the
 *               buffer that is its own; more rows as above;
 *   by columns  equal parts of the columns or heads of all rows for each thread.
 * Matmuls and attention are spread over all threads for any number of rows. Which thread computes
 * a value never shows in its bits.
 */
#ifndef MTPCORE_PLAN_H
#define MTPCORE_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "core/exact.h"
#include "core/interrupt.h"
#include "matmul/fetch_choice.h"
#include "matmul/matmul.h"
#include "ops/operations.h"
#include "core/pace.h"
#include "core/pool.h"

enum {
    MTP_UNIT = MTP_TILE,   /* rows that stay together */
    MTP_PAGE = 64,         /* places in a page of memory */
    MTP_RANGE = 1024,      /* places whose sums attention makes in one go */
    MTP_RANGE_LANES = 16,  /* values of these sums come in whole lanes, after a line of two more */
    MTP_QUERY_ROWS = 8,    /* rows of one sequence that share each page of keys */
    MTP_QUERIES = 128,     /* query heads of these rows that share it, at most */
    MTP_CODES = 64,        /* entries of a key, a value or a query that share a scale as codes */
    MTP_LOG = 17,          /* rows in the log of a recurrent state */
    MTP_TAPS = 32,         /* of a convolution, at most */
    MTP_BLOCK_ROWS = 1024, /* of a block whose rows are mixed, at most */
    MTP_MOST_KEPT = 256,   /* values of a row that are kept, at most */
    MTP_CANDIDATES = 2048  /* of all rows of a block, at most */
};

/* How keys and values are stored. */
typedef enum { MTP_KV_F32, MTP_KV_F16, MTP_KV_Q8_0 } mtp_kv_type;

/* When all threads wait for each other before an operation: a sum of these. */
enum { MTP_BARRIER_IF_FEW = 1 /* one unit of rows at most */, MTP_BARRIER_IF_MANY = 2 };

/* How the work of an operation is shared; matmuls and attention know only the last. */
enum { MTP_BY_ROWS, MTP_IN_COPIES, MTP_BY_COLUMNS };

/* What a row sees: all up to itself, all of its sequence, or all up to the end of its span. */
enum { MTP_CAUSAL, MTP_BLOCK, MTP_SPANS };

/* Which rows: those of the batch, or those whose outputs were asked for. */
enum { MTP_TOKENS, MTP_OUTPUTS };

/* Rows of heads inside a buffer; offset, strides and width count values of 4 bytes. */
typedef struct {
    int32_t buffer, n_heads;
    int64_t offset, row_stride, head_stride, width;
} mtp_view;

/* `n`, `f` and the pointers are described with the function of each kind. */
typedef struct {
    mtp_kind kind;
    int32_t barrier, axis, sharing;
    int64_t n_units; /* parts into which columns or heads are cut */
    mtp_view in[5], out[2];
    mtp_matrix *matrices; /* owned */
    const float *weights[3];
    const double *numbers;
    const int32_t *axes;
    int64_t n[7];
    float f;
    int32_t memory; /* the group of memory layers that it reads or writes */
    int32_t fetch;  /* 1 + the place of its weight type among those of the run; 0: none */
} mtp_op;

/* Pages of keys and values: for each page, layer and head K as [k_width][MTP_PAGE], then for each
 * head V as [MTP_PAGE][v_width]; a latent layer has no V, the first entries of its K are.
 *
 * Q8_0 is int8 codes, in whole fours: K as [k_width / 4][MTP_PAGE][4], V as [MTP_PAGE][v_width];
 * for each head float32[blocks][MTP_PAGE] follow, the scales of MTP_CODES entries of each place. */
typedef struct {
    char *data;
    int64_t page_bytes;
    mtp_kv_type type;
} mtp_store;

/* A group of memory layers: its pages, and whose they are. */
typedef struct {
    mtp_store store;
    const int32_t *tables, *first, *length;
    int64_t pages_of_seq;
} mtp_memory;

/* States of recurrent layers in slots, and what was decided for each sequence: a row of a table of
 * int32 (recurrent/states.h). */
typedef struct {
    char *data;
    int64_t slot_bytes, n_slots;
    const int32_t *table;
} mtp_states;

/* Columns begin .. end of rows first_row .. first_row + n_rows of a matmul's results. */
typedef struct {
    const float *values;
    int64_t row_stride, first_row, n_rows, begin, end;
} mtp_piece;

/* The epilogue of a matmul whose results no operation reads: it gets them piece by piece, while
 * they are in the cache, each thread its own columns, those of a row in ascending order. */
typedef struct {
    int32_t buffer; /* that would hold them, and is not written */
    void (*apply)(void *argument, int thread, const mtp_piece *piece); /* NULL: none */
    void *argument;
} mtp_epilogue;

/* One batch. Everything in it was checked. */
typedef struct {
    int64_t n_rows[2]; /* by axis */
    const int32_t *tokens, *positions, *seq, *place, *outputs;
    const int32_t *parent; /* or NULL */
    const int32_t *until;  /* or NULL: of rows in spans, the place after what they see of theirs */
    int64_t n_axes;        /* of a position */
    void **buffers;
    mtp_memory *memory; /* by group */
    mtp_states states;
    mtp_epilogue epilogue;
    mtp_interrupt *interrupt; /* or NULL */
    /* Made by mtp_run_begin from the above: */
    int32_t *base;    /* [n] first place of the row's sequence in this batch */
    int32_t *depth;   /* [n] rows of this batch before it on its path, which lie at base + depth */
    int32_t *is_tree; /* [n] whether its path lies anywhere else */
    int32_t *tiles;   /* [n_tiles + 1] runs of rows of one sequence, MTP_QUERY_ROWS at most */
    int64_t n_tiles;
    int32_t *before;     /* [n] the row of this batch before it on its path; -1: what is stored */
    int32_t *next;       /* [n] the next row of its sequence; -1: there is none */
    int32_t *first_rows; /* [n_sequences] the first row of each sequence */
    int64_t n_sequences;
    char **scratch;      /* by thread */
    void **buffers_seen; /* by thread and buffer: where a thread finds its copies */
    mtp_paces paces;
    /* How weights are prefetched: for each weight type MTP_FETCH_CLASSES of them. */
    mtp_fetch_choice *fetch;
    int64_t n_fetch;
    int fetch_way; /* of operations without a choice */
} mtp_run;

typedef struct {
    const mtp_op *ops;
    int64_t n_ops;
    const size_t *copy_bytes; /* [n_buffers] from one thread's copy to the next's; 0: one for all */
    int64_t n_buffers;
    int n_threads;
    mtp_pool *pool;
    double work_of_row, work; /* estimated nanoseconds of one thread */
    double worth_sharing;     /* below it the caller runs alone */
} mtp_plan;

typedef void (*mtp_operation)(const mtp_op *op, const mtp_run *run, int thread, int n_threads);

extern const mtp_operation mtp_operations_portable[MTP_KINDS];
extern const mtp_operation mtp_operations_avx2[MTP_KINDS];
extern const mtp_operation mtp_operations_avx512[MTP_KINDS];
extern const mtp_operation mtp_operations_neon[MTP_KINDS];

/* What MTP_OPERATIONS says of a kind. */
const char *mtp_kind_name(mtp_kind kind);
const char *mtp_kind_sharing(mtp_kind kind);

/* Fill in what a run derives from its rows, and say how it prefetches weights. */
void mtp_run_begin(mtp_run *run);

/* Bytes of scratch that a thread needs for an operation. */
size_t mtp_scratch_bytes(const mtp_op *op);

/* Run all operations; returns when every output is written, or when the run was interrupted. */
void mtp_plan_run(const mtp_plan *plan, mtp_run *run);

/* Do a task that walks plans, this one first: on all threads or on the caller, whichever way is
 * faster now. The task counts its walks. */
void mtp_plan_start(const mtp_plan *plan, mtp_run *run, mtp_task task, void *argument,
                    const int64_t *n_walks);

/* The part of it that each thread of a region does; `pool` is NULL where there is one thread. */
void mtp_plan_walk(const mtp_plan *plan, const mtp_run *run, mtp_pool *pool, int thread,
                   int n_threads);

/* Bytes in whole lines of the cache, so that what comes next begins with one. */
static inline size_t mtp_whole_lines(size_t bytes)
{
    return (bytes + MTP_LINE - 1) / MTP_LINE * MTP_LINE;
}

/* Where part i of `parts` begins when n things are shared out; part `parts` begins at n. */
static inline int64_t mtp_share(int64_t n, int64_t i, int64_t parts)
{
    return (n * i + parts - 1) / parts;
}

/* Bytes of the codes of a row. */
static inline int64_t mtp_code_bytes(int64_t width) { return (width + 3) / 4 * 4; }

/* Bytes of a query's codes, scales and sums of codes, in whole lines. */
static inline int64_t mtp_query_code_bytes(int64_t width)
{
    return (mtp_code_bytes(width) + (width + MTP_CODES - 1) / MTP_CODES * 8 + 63) / 64 * 64;
}

/* Bytes of a page that the keys, or the values, of one head take. */
static inline int64_t mtp_head_bytes(mtp_kv_type type, int64_t width)
{
    if (type == MTP_KV_Q8_0)
        return MTP_PAGE * (mtp_code_bytes(width) + (width + MTP_CODES - 1) / MTP_CODES * 4);
    return MTP_PAGE * width * (type == MTP_KV_F16 ? 2 : 4);
}

/* The most queries that share a page, where so many heads share a key head. */
static inline int64_t mtp_most_queries(int64_t n_heads)
{
    return n_heads < MTP_QUERIES / MTP_QUERY_ROWS ? n_heads * MTP_QUERY_ROWS : MTP_QUERIES;
}

/* Biases of a query head, by distance: those of a page lie in a row wherever it is. */
static inline int64_t mtp_bias_width(int64_t max_distance) { return 2 * (max_distance + MTP_PAGE); }

typedef struct {
    int64_t begin, end;
} mtp_range;

static inline int mtp_is_few(const mtp_run *run) { return run->n_rows[MTP_TOKENS] <= MTP_UNIT; }

/* Whether every thread computes all rows of an operation, in its own copy. */
static inline int mtp_is_copied(const mtp_op *op, const mtp_run *run)
{
    return op->sharing == MTP_IN_COPIES && mtp_is_few(run);
}

/* The rows of an operation that belong to this thread. */
static inline mtp_range mtp_rows_of(const mtp_op *op, const mtp_run *run, int thread, int n_threads)
{
    const int64_t n = run->n_rows[op->axis], units = (n + MTP_UNIT - 1) / MTP_UNIT;
    if (op->sharing == MTP_BY_COLUMNS || mtp_is_copied(op, run))
        return (mtp_range){0, n};
    mtp_range rows = {mtp_share(units, thread, n_threads) * MTP_UNIT,
                      mtp_share(units, thread + 1, n_threads) * MTP_UNIT};
    rows.end = rows.end < n ? rows.end : n;
    return rows;
}

/* Which of n columns or heads belong to this thread; n is a multiple of the units. */
static inline mtp_range mtp_columns_of(const mtp_op *op, int64_t n, int thread, int n_threads)
{
    if (op->sharing != MTP_BY_COLUMNS)
        return (mtp_range){0, n};
    const int64_t width = n / op->n_units;
    return (mtp_range){mtp_share(op->n_units, thread, n_threads) * width,
                       mtp_share(op->n_units, thread + 1, n_threads) * width};
}

static inline void *mtp_row(const mtp_run *run, const mtp_view *view, int64_t row, int64_t head)
{
    return (float *)run->buffers[view->buffer] + view->offset + row * view->row_stride +
           head * view->head_stride;
}

#endif
