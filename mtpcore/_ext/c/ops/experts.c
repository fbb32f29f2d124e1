/* Matmuls with the matrices of experts: every expert that is used is read once for all rows. */
#include <math.h>
#include <string.h>

#include "ops/rows.h"

typedef struct {
    int32_t *begin, *slots, *rows; /* [n_experts + 1], then by expert */
} expert_lists;

static expert_lists lists_in(const mtp_op *op, const mtp_run *run, const mtp_view *view,
                             int64_t n_experts)
{
    int32_t *words = run->buffers[view->buffer];
    int32_t *slots = words + n_experts + 1;
    return (expert_lists){words, slots, slots + run->n_rows[op->axis] * view->width};
}

void mtp_op_group_ids(const mtp_op *op, const mtp_run *run, int thread, int n_threads)
{
    const mtp_range rows = mtp_rows_of(op, run, thread, n_threads);
    for (int64_t t = rows.begin; t < rows.end; t++) {
        const int32_t *ids = mtp_row(run, &op->in[0], t, 0);
        int32_t *groups = mtp_row(run, &op->out[0], t, 0);
        for (int64_t r = 0; r < op->in[0].width; r++)
            groups[r] = (int32_t)(ids[r] / op->n[1]);
    }
}

/* Each is read once: a caller may write to them meanwhile. */
void mtp_op_given_ids(const mtp_op *op, const mtp_run *run, int thread, int n_threads)
{
    const mtp_range rows = mtp_rows_of(op, run, thread, n_threads);
    for (int64_t t = rows.begin; t < rows.end; t++) {
        const int64_t row = op->axis == MTP_OUTPUTS ? run->outputs[t] : t;
        const volatile int32_t *given = mtp_row(run, &op->in[0], row, 0);
        int32_t *ids = mtp_row(run, &op->out[0], t, 0);
        for (int64_t r = 0; r < op->in[0].width; r++) {
            const int32_t id = given[r];
            ids[r] = id >= 0 && id < op->n[0] ? id : (int32_t)op->n[0];
        }
    }
}

void mtp_op_pair_ids(const mtp_op *op, const mtp_run *run, int thread, int n_threads)
{
    const mtp_range rows = mtp_rows_of(op, run, thread, n_threads);
    for (int64_t t = rows.begin; t < rows.end; t++) {
        const int64_t first = ((const int32_t *)mtp_row(run, &op->in[0], t, 0))[op->n[1]];
        const int32_t *second = mtp_row(run, &op->in[1], t, 0);
        int32_t *ids = mtp_row(run, &op->out[0], t, 0);
        for (int64_t r = 0; r < op->in[1].width; r++)
            ids[r] = (int32_t)(first * op->n[2] + (first < op->n[0] - 1 ? second[r] : 0));
    }
}

/* The row of each id's table that a token has; where it has none, or the id is the last, the row after
 * all tables. */
void mtp_op_token_ids(const mtp_op *op, const mtp_run *run, int thread, int n_threads)
{
    const mtp_range rows = mtp_rows_of(op, run, thread, n_threads);
    for (int64_t t = rows.begin; t < rows.end; t++) {
        const int64_t token = run->tokens[t] >= 0 ? run->tokens[t] : op->n[2];
        const int32_t *tables = mtp_row(run, &op->in[0], t, 0);
        int32_t *ids = mtp_row(run, &op->out[0], t, 0);
        for (int64_t r = 0; r < op->in[0].width; r++) {
            const int has_row = token >= 0 && tables[r] < op->n[0] - 1;
            ids[r] = (int32_t)(has_row ? tables[r] * op->n[1] + token : (op->n[0] - 1) * op->n[1]);
        }
    }
}

/* A counting sort, so rows of one expert keep their order. Where n[1] is 1 ids may be n_experts, too:
 * such are in no list. */
void mtp_op_sort_by_expert(const mtp_op *op, const mtp_run *run, int thread, int n_threads)
{
    (void)n_threads;
    if (thread != 0 && !mtp_is_copied(op, run))
        return;
    const int64_t n_experts = op->n[0], n_used = op->in[0].width, n = run->n_rows[op->axis];
    expert_lists lists = lists_in(op, run, &op->out[0], n_experts);
    memset(lists.begin, 0, (size_t)(n_experts + 1) * sizeof(int32_t));
    for (int64_t t = 0; t < n; t++) {
        const int32_t *ids = mtp_row(run, &op->in[0], t, 0);
        for (int64_t r = 0; r < n_used; r++)
            if (ids[r] < n_experts)
                lists.begin[ids[r] + 1]++;
    }
    for (int64_t e = 0; e < n_experts; e++)
        lists.begin[e + 1] += lists.begin[e];
    for (int64_t t = 0; t < n; t++) {
        const int32_t *ids = mtp_row(run, &op->in[0], t, 0);
        for (int64_t r = 0; r < n_used; r++) {
            if (ids[r] >= n_experts)
                continue;
            const int32_t at = lists.begin[ids[r]]++;
            lists.slots[at] = (int32_t)(t * n_used + r);
            lists.rows[at] = (int32_t)t;
        }
    }
    memmove(lists.begin + 1, lists.begin, (size_t)n_experts * sizeof(int32_t));
    lists.begin[0] = 0;
}

void mtp_op_sort_by_head(const mtp_op *op, const mtp_run *run, int thread, int n_threads)
{
    (void)n_threads;
    if (thread != 0 && !mtp_is_copied(op, run))
        return;
    const int64_t n_heads = op->out[0].width, n = run->n_rows[op->axis];
    expert_lists lists = lists_in(op, run, &op->out[0], n_heads);
    for (int64_t h = 0; h <= n_heads; h++)
        lists.begin[h] = (int32_t)(h * n);
    for (int64_t h = 0; h < n_heads; h++)
        for (int64_t t = 0; t < n; t++) {
            lists.slots[h * n + t] = (int32_t)(t * n_heads + h);
            lists.rows[h * n + t] = (int32_t)t;
        }
}

/* A counting sort, as by expert. The parts are noted first, where rows in use will stand: what the
 * positions say is read once, for a caller may write to them. */
void mtp_op_sort_by_position(const mtp_op *op, const mtp_run *run, int thread, int n_threads)
{
    (void)n_threads;
    if (thread != 0 && !mtp_is_copied(op, run))
        return;
    const int64_t n_parts = op->n[0], n = run->n_rows[op->axis];
    expert_lists lists = lists_in(op, run, &op->out[0], n_parts);
    memset(lists.begin, 0, (size_t)(n_parts + 1) * sizeof(int32_t));
    for (int64_t t = 0; t < n; t++) {
        const int64_t row = op->axis == MTP_OUTPUTS ? run->outputs[t] : t;
        const int64_t part = mtp_part_of(run, row, op->n[1], n_parts);
        lists.rows[t] = (int32_t)part;
        lists.begin[part + 1]++;
    }
    for (int64_t e = 0; e < n_parts; e++)
        lists.begin[e + 1] += lists.begin[e];
    for (int64_t t = 0; t < n; t++)
        lists.slots[lists.begin[lists.rows[t]]++] = (int32_t)t;
    memcpy(lists.rows, lists.slots, (size_t)n * sizeof(int32_t));
    memmove(lists.begin + 1, lists.begin, (size_t)n_parts * sizeof(int32_t));
    lists.begin[0] = 0;
}

void mtp_op_prepare_by_expert(const mtp_op *op, const mtp_run *run, int thread, int n_threads)
{
    const mtp_view *x = &op->in[0];
    const expert_lists lists = lists_in(op, run, &op->in[1], op->n[0]);
    const int activation = (int)op->n[1];
    const int64_t stride = op->n[2] ? x->head_stride : x->row_stride;
    const mtp_range own = mtp_columns_of(op, x->width, thread, n_threads);
    const int is_mine = op->sharing == MTP_BY_COLUMNS || mtp_is_copied(op, run);
    char *out = run->buffers[op->out[0].buffer];
    int64_t n_seen = 0;
    for (int64_t e = 0; e < op->n[0]; e++) {
        const int64_t begin = lists.begin[e], n = lists.begin[e + 1] - begin;
        if (n == 0)
            continue;
        if (is_mine || n_seen++ % n_threads == thread)
            mtp_prepare(activation, mtp_row(run, x, 0, 0), stride,
                        (op->n[2] ? lists.slots : lists.rows) + begin, n, x->width, 0,
                        (n + MTP_TILE - 1) / MTP_TILE, own.begin, own.end, out);
        out += mtp_whole_lines(mtp_activation_bytes(activation, n, x->width));
    }
}

void mtp_op_scatter(const mtp_op *op, const mtp_run *run, int thread, int n_threads)
{
    const mtp_range rows = mtp_rows_of(op, run, thread, n_threads);
    const int64_t size = op->n[0], width = op->out[0].width;
    for (int64_t t = rows.begin; t < rows.end; t++) {
        const int32_t *ids = mtp_row(run, &op->in[1], t, 0);
        float *y = mtp_row(run, &op->out[0], t, 0);
        for (int64_t i = 0; i < width; i++)
            y[i] = -INFINITY;
        for (int64_t r = 0; r < op->in[0].n_heads; r++) {
            const float *x = mtp_row(run, &op->in[0], t, r);
            const int32_t *columns = op->axes + ids[r] * size;
            for (int64_t i = 0; i < size; i++)
                y[columns[i]] = x[i];
        }
    }
}

/* Add an expert's bias to its rows. */
static void add_bias(const float *bias, float *y, int64_t stride, const int32_t *slots, int64_t n,
                     int64_t begin, int64_t end)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = begin; j < end; j++)
            y[slots[i] * stride + j] += bias[j];
}

/* weights[0] holds the biases of all experts, one's after the other's.
 *
 * Where the experts' columns are shared out, each thread has its part of every expert; else all
 * groups of outputs of the experts in use, one expert's after the other's, are cut in equal
 * parts. */
void mtp_op_expert_matmul(const mtp_op *op, const mtp_run *run, int thread, int n_threads)
{
    const expert_lists lists = lists_in(op, run, &op->in[1], op->n[0]);
    const int64_t n_outputs = op->matrices->n_rows, units = (n_outputs + 31) / 32;
    const int activation = mtp_type_activation(op->matrices->type);
    const mtp_range own = mtp_columns_of(op, n_outputs, thread, n_threads);
    int64_t n_used = 0, unit = 0;
    for (int64_t e = 0; e < op->n[0]; e++)
        n_used += lists.begin[e + 1] > lists.begin[e];
    const int64_t first = mtp_share(n_used * units, thread, n_threads);
    const int64_t last = mtp_share(n_used * units, thread + 1, n_threads);
    const char *prepared = run->buffers[op->in[0].buffer];
    for (int64_t e = 0; e < op->n[0]; e++) {
        const int64_t at = lists.begin[e], n = lists.begin[e + 1] - at;
        if (n == 0)
            continue;
        int64_t begin = own.begin, end = own.end;
        if (op->sharing != MTP_BY_COLUMNS) {
            begin = first > unit ? (first - unit) * 32 : 0;
            end = (last - unit) * 32 < n_outputs ? (last - unit) * 32 : n_outputs;
        }
        if (begin < end) {
            const mtp_fetch_watch fetch = mtp_watch_fetch(op, run, n, thread);
            mtp_matmul(&op->matrices[e], prepared, n, n, mtp_row(run, &op->out[0], 0, 0),
                       op->out[0].head_stride, lists.slots + at, begin, end, run->scratch[thread],
                       fetch.way, run->interrupt);
            mtp_fetch_end(&fetch, &op->matrices[e], end - begin, n_threads);
            if (op->weights[0])
                add_bias(op->weights[0] + e * n_outputs, mtp_row(run, &op->out[0], 0, 0),
                         op->out[0].head_stride, lists.slots + at, n, begin, end);
        }
        prepared += mtp_whole_lines(mtp_activation_bytes(activation, n, op->matrices->n_cols));
        unit += units;
    }
}
