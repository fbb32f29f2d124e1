#include "ops/rows.h"

#include <math.h>
#include <string.h>

static void copy_row(const mtp_run *run, const mtp_view *from, int64_t from_row, const mtp_view *to,
                     int64_t to_row, mtp_range own)
{
    for (int64_t head = 0; head < to->n_heads; head++)
        memcpy((float *)mtp_row(run, to, to_row, head) + own.begin,
               (const float *)mtp_row(run, from, from_row, head) + own.begin,
               (size_t)(own.end - own.begin) * sizeof(float));
}

void mtp_op_embed(const mtp_op *op, const mtp_run *run, int thread, int n_threads)
{
    const mtp_range rows = mtp_rows_of(op, run, thread, n_threads);
    for (int64_t t = rows.begin; t < rows.end; t++) {
        const int64_t token = run->tokens[t] >= 0 ? run->tokens[t] : op->n[0] - 1;
        if (token < 0) {
            copy_row(run, &op->in[0], t, &op->out[0], t, (mtp_range){0, op->out[0].width});
            continue;
        }
        const int64_t part = op->n[2] > 0 ? mtp_part_of(run, t, op->n[4], op->n[2]) : 0;
        float *y = mtp_row(run, &op->out[0], t, 0);
        if (op->n[2] > 0 && token >= (part > 0 ? op->n[3] : op->n[5])) {
            memset(y, 0, (size_t)op->out[0].width * sizeof(float));
            continue;
        }
        const int64_t begin = part > 0 ? op->n[5] + (part - 1) * op->n[3] : 0;
        mtp_matrix_row(op->matrices, begin + token, y);
        for (int64_t i = 0; op->n[1] && i < op->out[0].width; i++)
            y[i] *= op->f;
    }
}

void mtp_op_embed_positions(const mtp_op *op, const mtp_run *run, int thread, int n_threads)
{
    const mtp_range rows = mtp_rows_of(op, run, thread, n_threads);
    for (int64_t t = rows.begin; t < rows.end; t++) {
        const int64_t position = run->positions[t * run->n_axes];
        float *y = mtp_row(run, &op->out[0], t, 0);
        if (position >= 0 && position < op->matrices->n_rows)
            mtp_matrix_row(op->matrices, position, y);
        else
            memset(y, 0, (size_t)op->out[0].width * sizeof(float));
    }
}

void mtp_op_embed_codes(const mtp_op *op, const mtp_run *run, int thread, int n_threads)
{
    const mtp_range rows = mtp_rows_of(op, run, thread, n_threads);
    const int64_t width = op->out[0].width, n_codes = op->in[0].width;
    float *part = (float *)run->scratch[thread];
    for (int64_t t = rows.begin; t < rows.end; t++) {
        const int32_t *codes = mtp_row(run, &op->in[0], t, 0);
        float *out = mtp_row(run, &op->out[0], t, 0);
        memset(out, 0, (size_t)width * sizeof(float));
        for (int64_t i = 0; i < n_codes; i++) {
            const int64_t code = codes[i]; /* read once: a caller may write there */
            if (code < 0 || code >= (i > 0 ? op->n[0] : op->n[1]))
                continue;
            const int64_t begin = i > 0 ? op->n[1] + (i - 1) * op->n[0] : 0;
            mtp_matrix_row(op->matrices, begin + code, part);
            for (int64_t c = 0; c < width; c++)
                out[c] += part[c];
        }
    }
}

void mtp_op_embed_ids(const mtp_op *op, const mtp_run *run, int thread, int n_threads)
{
    const mtp_range rows = mtp_rows_of(op, run, thread, n_threads);
    for (int64_t t = rows.begin; t < rows.end; t++) {
        const int32_t *ids = mtp_row(run, &op->in[0], t, 0);
        for (int64_t r = 0; r < op->in[0].width; r++)
            mtp_matrix_row(op->matrices, ids[r], mtp_row(run, &op->out[0], t, r));
    }
}

void mtp_op_embedding_rows(const mtp_op *op, const mtp_run *run, int thread, int n_threads)
{
    const mtp_range rows = mtp_rows_of(op, run, thread, n_threads);
    const int64_t width = op->out[0].width;
    for (int64_t t = rows.begin; t < rows.end; t++) {
        if (run->tokens[t] < 0)
            copy_row(run, &op->in[0], t, &op->out[0], t, (mtp_range){0, width});
        else
            memset(mtp_row(run, &op->out[0], t, 0), 0, (size_t)width * sizeof(float));
    }
}

void mtp_op_copy(const mtp_op *op, const mtp_run *run, int thread, int n_threads)
{
    const mtp_range rows = mtp_rows_of(op, run, thread, n_threads);
    const mtp_range own = mtp_columns_of(op, op->out[0].width, thread, n_threads);
    for (int64_t t = rows.begin; t < rows.end; t++)
        copy_row(run, &op->in[0], t, &op->out[0], t, own);
}

void mtp_op_take(const mtp_op *op, const mtp_run *run, int thread, int n_threads)
{
    const mtp_range rows = mtp_rows_of(op, run, thread, n_threads);
    const mtp_range own = mtp_columns_of(op, op->out[0].width, thread, n_threads);
    for (int64_t t = rows.begin; t < rows.end; t++)
        copy_row(run, &op->in[0], run->outputs[t], &op->out[0], t, own);
}

void mtp_op_prepare(const mtp_op *op, const mtp_run *run, int thread, int n_threads)
{
    const mtp_range rows = mtp_rows_of(op, run, thread, n_threads);
    const mtp_view *x = &op->in[0];
    const mtp_range own = mtp_columns_of(op, x->width, thread, n_threads);
    if (rows.begin < rows.end)
        mtp_prepare((int)op->n[0], mtp_row(run, x, 0, 0), x->row_stride, NULL,
                    run->n_rows[op->axis], x->width, rows.begin / MTP_TILE,
                    (rows.end + MTP_TILE - 1) / MTP_TILE, own.begin, own.end,
                    run->buffers[op->out[0].buffer]);
}

/* Results that the epilogue gets at once, so that they are still in the first cache: of few rows
 * many columns, always whole groups and whole chunks of a choice. */
enum { VALUES_AT_ONCE = 512 * MTP_UNIT, COLUMNS = 64, ROWS = VALUES_AT_ONCE / COLUMNS };

static void matmul_with_epilogue(const mtp_op *op, const mtp_run *run, int64_t begin, int64_t end,
                                 int thread, int n_threads)
{
    _Alignas(64) float values[VALUES_AT_ONCE];
    const mtp_matrix *w = op->matrices;
    const char *prepared = run->buffers[op->in[0].buffer];
    const int activation = mtp_type_activation(w->type);
    const int64_t n = run->n_rows[op->axis];
    const int64_t width = VALUES_AT_ONCE / (n < ROWS ? n : ROWS) / COLUMNS * COLUMNS;
    for (int64_t at = begin; at < end && !mtp_is_interrupted(run->interrupt); at += width) {
        const int64_t stop = at + width < end ? at + width : end;
        const mtp_matrix part = mtp_matrix_part(w, at, stop);
        for (int64_t row = 0; row < n; row += ROWS) {
            const mtp_piece piece = {values, width, row, n - row < ROWS ? n - row : ROWS, at, stop};
            const mtp_fetch_watch fetch = mtp_watch_fetch(op, run, n, thread);
            mtp_matmul(&part, prepared + mtp_activation_bytes(activation, row, w->n_cols), n,
                       piece.n_rows, values, width, NULL, 0, stop - at, run->scratch[thread],
                       fetch.way, NULL);
            mtp_fetch_end(&fetch, w, stop - at, n_threads);
            run->epilogue.apply(run->epilogue.argument, thread, &piece);
        }
    }
}

void mtp_op_matmul(const mtp_op *op, const mtp_run *run, int thread, int n_threads)
{
    const int64_t n = run->n_rows[op->axis], n_outputs = op->matrices->n_rows;
    int64_t begin = (mtp_share(op->n[1], thread, n_threads) - op->n[0]) * op->n[2];
    int64_t end = (mtp_share(op->n[1], thread + 1, n_threads) - op->n[0]) * op->n[2];
    begin = begin > 0 ? begin : 0;
    end = end < n_outputs ? end : n_outputs;
    if (n == 0 || begin >= end)
        return;
    if (run->epilogue.apply && run->epilogue.buffer == op->out[0].buffer) {
        matmul_with_epilogue(op, run, begin, end, thread, n_threads);
        return;
    }
    float *y = mtp_row(run, &op->out[0], 0, 0);
    const int64_t stride = op->out[0].row_stride;
    const mtp_fetch_watch fetch = mtp_watch_fetch(op, run, n, thread);
    mtp_matmul(op->matrices, run->buffers[op->in[0].buffer], n, n, y, stride, NULL, begin, end,
               run->scratch[thread], fetch.way, run->interrupt);
    mtp_fetch_end(&fetch, op->matrices, end - begin, n_threads);
    if (op->weights[0])
        for (int64_t t = 0; t < n; t++)
            for (int64_t i = begin; i < end; i++)
                y[t * stride + i] += op->weights[0][i];
}

void mtp_op_angles(const mtp_op *op, const mtp_run *run, int thread, int n_threads)
{
    const mtp_range rows = mtp_rows_of(op, run, thread, n_threads);
    const int64_t n = op->n[0];
    const double magnitude = op->numbers[n];
    for (int64_t t = rows.begin; t < rows.end; t++) {
        float *y = mtp_row(run, &op->out[0], t, 0);
        for (int64_t i = 0; i < n; i++) {
            const double angle = run->positions[t * run->n_axes + op->axes[i]] * op->numbers[i];
            y[i] = (float)(cos(angle) * magnitude);
            y[n + i] = (float)(sin(angle) * magnitude);
        }
    }
}
