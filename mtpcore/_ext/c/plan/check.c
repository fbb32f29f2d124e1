#include "plan/check.h"

#include "matmul/layout.h"
#include "ops/rows.h"
#include "recurrent/delta_step.h"

/* The last operation before this one that writes a buffer, or NULL. */
static const mtp_op *maker_of(const mtp_plan *plan, int64_t at, int32_t buffer)
{
    for (int64_t i = at - 1; i >= 0; i--)
        for (int j = 0; j < 2; j++)
            if (plan->ops[i].out[j].n_heads > 0 && plan->ops[i].out[j].buffer == buffer)
                return &plan->ops[i];
    return NULL;
}

/* Among how many matrices the lists that an operation reads share out its rows; -1 where it
 * reads no lists of such rows. */
static int64_t n_matrices_of_lists(const mtp_plan *plan, int64_t at, const mtp_view *lists)
{
    const mtp_op *maker = maker_of(plan, at, lists->buffer);
    if (!maker || maker->axis != plan->ops[at].axis || maker->out[0].width != lists->width)
        return -1;
    if (maker->kind == MTP_SORT_BY_EXPERT || maker->kind == MTP_SORT_BY_POSITION)
        return maker->n[0];
    return maker->kind == MTP_SORT_BY_HEAD ? maker->out[0].width : -1;
}

/* Whether heads of all rows follow each other, so that they can be counted through. */
static int is_closed(const mtp_view *view)
{
    return view->row_stride == view->n_heads * view->head_stride;
}

static int is_same(const mtp_view *a, const mtp_view *b)
{
    return a->buffer == b->buffer && a->offset == b->offset && a->row_stride == b->row_stride;
}

static int is_alike(const mtp_view *a, const mtp_view *b)
{
    return a->n_heads == b->n_heads && a->width == b->width;
}

/* What an operation makes that is no view of values: its bytes at the largest batch, and at one
 * unit of rows. */
typedef struct {
    int64_t most, few;
} made_bytes;

static int64_t few_rows(const mtp_bounds *bounds)
{
    return bounds->n_batch < MTP_UNIT ? bounds->n_batch : MTP_UNIT;
}

/* Whether a buffer has room for it, and so has each thread's copy if there are any. */
static int has_room(const mtp_plan *plan, const mtp_bounds *bounds, const mtp_view *view,
                    made_bytes made)
{
    const size_t copy = plan->copy_bytes[view->buffer];
    return made.most <= bounds->bytes[view->buffer] && (copy == 0 || (size_t)made.few <= copy);
}

/* Rows prepared for a matmul, `of_row` of them for each row. */
static made_bytes prepared_rows(const mtp_bounds *bounds, int activation, int64_t of_row,
                                int64_t n_cols, int64_t more)
{
    const int64_t each = of_row * (int64_t)mtp_activation_bytes(activation, 1, n_cols);
    return (made_bytes){bounds->n_batch * each + more, few_rows(bounds) * each + more};
}

/* Lists of the rows of n matrices, each row being in `of_row` of them. */
static int fits_lists(const mtp_plan *plan, const mtp_bounds *bounds, const mtp_view *lists,
                      int64_t n, int64_t of_row)
{
    if (n < 1 || n > bounds->bytes[lists->buffer] / 4)
        return 0;
    const made_bytes made = {4 * mtp_expert_list_words(n, bounds->n_batch * of_row),
                             4 * mtp_expert_list_words(n, few_rows(bounds) * of_row)};
    return has_room(plan, bounds, lists, made);
}

/* Whether rows of a width are whole blocks of an activation. */
static int is_whole(int64_t activation, int64_t width)
{
    return activation >= MTP_ACT_F32 && activation <= MTP_ACT_Q8_256 &&
           width % mtp_activation_block((int)activation) == 0;
}

/* Whether keys and values that begin at these bytes of a page end in it. */
static int fits_page(const mtp_bounds *bounds, const mtp_op *op, int64_t n_heads, int64_t k_width,
                     int64_t v_width)
{
    if (op->memory < 0 || op->memory >= bounds->n_groups)
        return 0;
    const mtp_store *store = &bounds->memory[op->memory].store;
    const int64_t k_end = op->n[0] + n_heads * mtp_head_bytes(store->type, k_width);
    const int64_t v_end = op->n[1] + n_heads * mtp_head_bytes(store->type, v_width);
    return op->n[0] >= 0 && k_end <= store->page_bytes && v_end <= store->page_bytes;
}

/* Whether a view holds the sums of n[5] ranges of each query head, of as many rows as share
 * them. */
static int fits_ranges(const mtp_bounds *bounds, const mtp_op *op, const mtp_view *sums,
                       int64_t n_heads, int64_t width)
{
    return op->n[5] >= 1 && sums->n_heads / few_rows(bounds) / op->n[5] >= n_heads &&
           sums->width >=
               MTP_RANGE_LANES + (width + MTP_RANGE_LANES - 1) / MTP_RANGE_LANES * MTP_RANGE_LANES;
}

/* Whether so many values from byte `offset` of a slot on, a line's first, end in it. */
static int fits_slot(const mtp_bounds *bounds, int64_t offset, int64_t n_values)
{
    return offset >= 0 && offset % MTP_LINE == 0 && n_values <= bounds->slot_bytes / 4 &&
           offset <= bounds->slot_bytes - 4 * n_values;
}

static const char *misfit_of_conv(const mtp_op *op, const mtp_bounds *bounds)
{
    const int64_t channels = op->in[0].width;
    if (op->axis != MTP_TOKENS || !is_alike(&op->in[0], &op->out[0]) || op->in[0].n_heads != 1)
        return "rows of different shapes";
    if (op->n[3] < 1 || op->n[3] > MTP_TAPS || !op->weights[0])
        return "more taps than there is room for";
    return fits_slot(bounds, op->n[0], (op->n[3] - 1) * channels) &&
                   fits_slot(bounds, op->n[1], MTP_LOG * channels)
               ? NULL
               : "a state that no slot has room for";
}

static const char *misfit_of_delta(const mtp_op *op, const mtp_bounds *bounds)
{
    const mtp_view *k = &op->in[1], *v = &op->in[2], *decays = &op->in[3], *beta = &op->in[4];
    const int64_t n_heads = v->n_heads;
    if (op->axis != MTP_TOKENS || !is_alike(&op->in[0], k) || !is_alike(v, &op->out[0]))
        return "rows of different shapes";
    if (k->n_heads < 1 || n_heads % k->n_heads)
        return "heads that do not share key heads evenly";
    if (beta->n_heads != 1 || beta->width != n_heads || op->n[3] < 0 || op->n[3] >= DECAYS)
        return "not a decay and a beta for each head";
    const mtp_delta shape = {n_heads,       k->n_heads,    k->width,      v->width,
                             (int)op->n[2], (int)op->n[3], (int)op->n[4], op->weights[0]};
    const int by_head = shape.decays == DECAY_BY_HEAD;
    if (decays->n_heads != (by_head ? 1 : n_heads) ||
        decays->width != (by_head ? n_heads : mtp_delta_decays(&shape)))
        return "not a decay and a beta for each head";
    if ((shape.decays == DECAY_BY_COLUMN) != (shape.rates != NULL))
        return "rates without decays of columns, or decays without rates";
    return fits_slot(bounds, op->n[0], mtp_delta_base(&shape)) &&
                   fits_slot(bounds, op->n[1], MTP_LOG * mtp_delta_logged(&shape))
               ? NULL
               : "a state that no slot has room for";
}

/* Whether a matrix has rows for n parts: the first's, and so many of each other one. */
static int fits_parts(const mtp_matrix *w, int64_t n, int64_t first, int64_t each)
{
    return n >= 1 && each >= 1 && first >= 1 && first <= w->n_rows &&
           n - 1 <= (w->n_rows - first) / each;
}

/* Whether an operation has what most take for granted: an input and an output. */
static int has_views(const mtp_op *op)
{
    const int reads_none = op->kind == MTP_EMBED || op->kind == MTP_EMBED_POSITIONS ||
                           op->kind == MTP_ANGLES || op->kind == MTP_SORT_BY_HEAD ||
                           op->kind == MTP_SORT_BY_POSITION;
    return (reads_none || op->in[0].n_heads > 0) &&
           (op->kind == MTP_REMEMBER || op->out[0].n_heads > 0);
}

/* Whether it is computed in copies of all that it makes where there are such, and only there. */
static int has_its_copies(const mtp_plan *plan, const mtp_op *op)
{
    for (int i = 0; i < 2; i++)
        if (op->out[i].n_heads > 0 &&
            (plan->copy_bytes[op->out[i].buffer] > 0) != (op->sharing == MTP_IN_COPIES))
            return 0;
    return 1;
}

/* Whether the columns or heads that threads share are as many equal parts, each of whole blocks. */
static int is_cut_evenly(const mtp_op *op)
{
    const mtp_view *in = op->in, *out = op->out;
    int64_t n = 0, block = 1;
    switch (op->kind) {
    case MTP_MATMUL: /* whose units say it */
        return 1;
    case MTP_EXPERT_MATMUL:
        n = op->matrices->n_rows;
        block = MTP_GROUP_ROWS;
        break;
    case MTP_PREPARE:
    case MTP_PREPARE_BY_EXPERT:
        n = in->width;
        block = mtp_activation_block((int)op->n[op->kind == MTP_PREPARE ? 0 : 1]);
        break;
    case MTP_RMS_NORM:
    case MTP_L2_NORM:
    case MTP_LAYER_NORM:
    case MTP_GAUSSIAN_TOPK:
    case MTP_ROPE:
    case MTP_MUL_HEADS:
    case MTP_SCALE_BY_POSITION:
        n = out->n_heads;
        break;
    case MTP_REMEMBER:
        n = in->n_heads;
        break;
    case MTP_ATTENTION:
        n = op->n[2];
        break;
    case MTP_ADD:
    case MTP_MUL:
    case MTP_SCALE:
    case MTP_CLAMP:
    case MTP_SCALE_BY:
    case MTP_SHIFT_BY:
    case MTP_ACTIVATION:
    case MTP_XIELU:
    case MTP_GATED:
    case MTP_MIX:
    case MTP_ADD_CHOSEN:
    case MTP_SCALE_CHOSEN:
    case MTP_COPY:
    case MTP_TAKE:
    case MTP_BLOCK_MEAN:
    case MTP_BLOCK_MIX:
        n = out->width;
        break;
    default:
        return 0;
    }
    return n % op->n_units == 0 && n / op->n_units % block == 0;
}

/* Whether the units of a matmul are whole groups, and all of its outputs. */
static int has_its_units(const mtp_op *op)
{
    const int64_t first = op->n[0], n_units = op->n[1], each = op->n[2];
    return first >= 0 && first < n_units && n_units <= INT32_MAX && each >= MTP_GROUP_ROWS &&
           each % MTP_GROUP_ROWS == 0 && n_units - first >= (op->matrices->n_rows - 1) / each + 1;
}

/* Whether the last operation that made what a matmul reads prepared it for its matrix. */
static int is_prepared(const mtp_plan *plan, int64_t at)
{
    const mtp_op *op = &plan->ops[at], *maker = maker_of(plan, at, op->in[0].buffer);
    return maker && maker->kind == MTP_PREPARE && maker->axis == op->axis &&
           maker->in[0].width == op->matrices->n_cols &&
           maker->n[0] == mtp_type_activation(op->matrices->type);
}

/* Whether the ids that an operation reads are those that find_best found among n, or fewer. */
static int are_found(const mtp_plan *plan, int64_t at, int64_t n)
{
    const mtp_view *ids = &plan->ops[at].in[0];
    const mtp_op *maker = maker_of(plan, at, ids->buffer);
    return maker && maker->kind == MTP_FIND_BEST && maker->axis == plan->ops[at].axis &&
           maker->in[0].width <= n && maker->n[0] >= ids->width && is_same(&maker->out[0], ids);
}

/* Whether the ids that an operation reads are those that a route chose among n, or fewer, or the
 * groups of such experts, or given ones, or rows of tables that these and a token choose. */
static int are_chosen(const mtp_plan *plan, int64_t at, const mtp_view *ids, int64_t n_used,
                      int64_t n)
{
    const mtp_op *maker = maker_of(plan, at, ids->buffer);
    if (!maker || maker->axis != plan->ops[at].axis || !is_same(&maker->out[0], ids))
        return 0;
    if (maker->kind == MTP_GROUP_IDS)
        return maker->n[0] / maker->n[1] <= n && maker->in[0].width >= n_used;
    if (maker->kind == MTP_GIVEN_IDS)
        return maker->n[0] < n && maker->in[0].width >= n_used;
    if (maker->kind == MTP_TOKEN_IDS)
        return (maker->n[0] - 1) * maker->n[1] < n && maker->in[0].width >= n_used;
    if (maker->kind == MTP_PAIR_IDS)
        return (maker->n[0] - 1) * maker->n[2] < n && maker->in[1].width >= n_used;
    return maker->kind == MTP_ROUTE && maker->in[0].width <= n && maker->n[0] >= n_used;
}

static const char *misfit_of_candidates(const mtp_plan *plan, int64_t at)
{
    const mtp_op *op = &plan->ops[at];
    const mtp_view *in = op->in, *out = op->out, *each = op->kind == MTP_BLOCK_WALK ? &in[2] : in;
    const int64_t first = op->kind == MTP_BLOCK_WALK ? op->n[1] : op->n[2];
    if (op->axis != MTP_TOKENS || op->n[0] < 1 || op->n[0] > MTP_BLOCK_ROWS ||
        each->n_heads > MTP_CANDIDATES / op->n[0] || first < 0 || first >= op->n[0])
        return "more candidates than there is room for, or none";
    if (op->kind == MTP_BLOCK_WALK)
        return are_found(plan, at, out->width) && is_alike(&in[2], &in[3]) &&
                       in[2].n_heads == in[0].width && in[1].n_heads == 1 &&
                       in[1].width == in[2].width && out->n_heads == 1
                   ? NULL
                   : "not two vectors for each candidate, or other columns";
    return is_alike(in, out) && is_alike(in, &in[1]) && is_alike(in, &in[2]) && op->n[1] >= 1 &&
                   in->width % op->n[1] == 0 && op->weights[0]
               ? NULL
               : "candidates of different shapes, or no bias";
}

const char *mtp_plan_misfit(const mtp_plan *plan, int64_t at, const mtp_bounds *bounds)
{
    const mtp_op *op = &plan->ops[at];
    const mtp_view *in = op->in, *out = op->out;
    const mtp_matrix *w = op->matrices;
    const mtp_op *maker;
    if (!has_views(op))
        return "nothing to read, or nothing to write";
    if (!has_its_copies(plan, op))
        return "copies that it does not make, or none that it makes";
    if (op->sharing == MTP_BY_COLUMNS && !is_cut_evenly(op))
        return "columns that are not cut in equal parts";
    switch (op->kind) {
    case MTP_EMBED:
        if (bounds->n_vocab < 1 || w->n_rows < bounds->n_vocab)
            return "a table without a row for each token";
        if (op->n[0] < 0 || op->n[0] > w->n_rows || (op->n[0] > 0 && in->n_heads > 0))
            return "no row for what is no token";
        if (op->n[2] != 0 && (op->n[0] != 0 || op->axis != MTP_TOKENS ||
                              !fits_parts(w, op->n[2], op->n[5], op->n[3])))
            return "a table without a part for each position";
        return w->n_cols == out->width && (in->n_heads == 0 || is_alike(in, out))
                   ? NULL
                   : "rows of another width than the table's";
    case MTP_EMBED_POSITIONS:
        return w->n_cols == out->width && op->axis == MTP_TOKENS
                   ? NULL
                   : "rows of another width than the table's";
    case MTP_EMBED_CODES:
        if (!fits_parts(w, in->width, op->n[1], op->n[0]))
            return "a table without a part for each code";
        return w->n_cols == out->width && in->n_heads == 1
                   ? NULL
                   : "rows of another width than the table's";
    case MTP_EMBED_IDS:
        if (!are_found(plan, at, w->n_rows) && !are_chosen(plan, at, in, in->width, w->n_rows))
            return "ids of more rows than the table has";
        return w->n_cols == out->width && out->n_heads == in->width
                   ? NULL
                   : "rows of another width than the table's";
    case MTP_EMBEDDING_ROWS:
        return op->axis == MTP_TOKENS && is_alike(in, out) ? NULL : "rows of another shape";
    case MTP_PREPARE:
        if (!is_whole(op->n[0], in->width))
            return "rows that are no whole blocks";
        return has_room(plan, bounds, out, prepared_rows(bounds, (int)op->n[0], 1, in->width, 0))
                   ? NULL
                   : "no room for prepared rows";
    case MTP_MATMUL:
        if (!is_prepared(plan, at))
            return "prepared rows of another width than the matrix's";
        if (w->n_rows != out->width)
            return "outputs of another matrix";
        return has_its_units(op) ? NULL : "units that are not its outputs";
    case MTP_ROUTE:
        if (op->n[3] > 1 && (in->width % op->n[3] || op->n[4] < 1 || op->n[4] > op->n[3] ||
                             op->n[0] > op->n[4] * (in->width / op->n[3])))
            return "more experts are used than are in the groups";
        return op->n[0] >= 1 && op->n[0] <= in->width && op->n[0] <= out[0].width &&
                       op->n[0] <= out[1].width
                   ? NULL
                   : "more experts are used than there are";
    case MTP_GROUP_IDS:
        if (!are_chosen(plan, at, in, in->width, op->n[0]))
            return "ids of more experts than there are in the groups";
        if (op->n[1] < 1 || op->n[0] % op->n[1])
            return "groups of different sizes, or none";
        return is_alike(in, out) ? NULL : "not a group for each id";
    case MTP_GIVEN_IDS:
        if (op->n[0] < 1 || op->n[0] >= INT32_MAX)
            return "ids of nothing";
        return is_alike(in, out) ? NULL : "not an id for each one that is given";
    case MTP_PAIR_IDS:
        if (op->n[0] < 1 || op->n[2] < 1 || op->n[0] > INT32_MAX / op->n[2])
            return "more pairs than there are numbers";
        if (op->n[1] < 0 || op->n[1] >= in->width || in->n_heads != 1 ||
            !are_chosen(plan, at, in, in->width, op->n[0]) ||
            !are_chosen(plan, at, &in[1], in[1].width, op->n[2]))
            return "ids of more than there are pairs of";
        return is_alike(&in[1], out) ? NULL : "not a pair for each id";
    case MTP_TOKEN_IDS:
        if (op->axis != MTP_TOKENS || bounds->n_vocab < 1 || op->n[1] < bounds->n_vocab ||
            op->n[2] < -1 || op->n[2] >= op->n[1])
            return "a table without a row for each token";
        if (op->n[0] < 1 || op->n[0] > INT32_MAX / op->n[1])
            return "more rows than there are numbers";
        if (in->n_heads != 1 || !are_chosen(plan, at, in, in->width, op->n[0]))
            return "ids of more tables than there are";
        return is_alike(in, out) ? NULL : "not a row for each id";
    case MTP_SORT_BY_EXPERT:
        if (op->n[0] < 1 || op->n[0] >= INT32_MAX || (op->n[1] != 0 && op->n[1] != 1))
            return "lists of nothing";
        if (!are_chosen(plan, at, in, in->width, op->n[0] + op->n[1]))
            return "ids of more experts than there are lists for";
        if (in->width != out->width)
            return "lists for another number of experts";
        return fits_lists(plan, bounds, out, op->n[0], in->width) ? NULL : "no room for the lists";
    case MTP_SORT_BY_HEAD:
        return fits_lists(plan, bounds, out, out->width, out->width) ? NULL
                                                                     : "no room for the lists";
    case MTP_SORT_BY_POSITION:
        if (out->width != 1)
            return "not one of the matrices for each row";
        return fits_lists(plan, bounds, out, op->n[0], 1) ? NULL : "no room for the lists";
    case MTP_PREPARE_BY_EXPERT:
        if (n_matrices_of_lists(plan, at, &in[1]) != op->n[0])
            return "lists for other matrices";
        if (op->n[2] && (in->n_heads != in[1].width || !is_closed(in)))
            return "not a row for each rank";
        if (!is_whole(op->n[1], in->width))
            return "rows that are no whole blocks";
        return has_room(plan, bounds, out,
                        prepared_rows(bounds, (int)op->n[1], in[1].width, in->width,
                                      MTP_LINE * op->n[0]))
                   ? NULL
                   : "no room for prepared rows";
    case MTP_EXPERT_MATMUL:
        maker = maker_of(plan, at, in->buffer);
        if (n_matrices_of_lists(plan, at, &in[1]) != op->n[0])
            return "lists for other matrices";
        if (!maker || maker->kind != MTP_PREPARE_BY_EXPERT || maker->in[0].width != w->n_cols ||
            maker->in[1].buffer != in[1].buffer || maker->axis != op->axis ||
            maker->n[1] != mtp_type_activation(w->type))
            return "prepared rows of another width than the matrices'";
        return w->n_rows == out->width && out->n_heads == in[1].width && is_closed(out)
                   ? NULL
                   : "outputs of other matrices";
    case MTP_SCATTER:
        if (!are_chosen(plan, at, &in[1], in[0].n_heads, op->n[1]))
            return "ids of more clusters than there are";
        return in[0].width == op->n[0] && in[0].n_heads <= in[1].width ? NULL
                                                                       : "clusters of another size";
    case MTP_MUL_HEADS:
        return is_alike(in, out) && in[1].n_heads == 1 && in[1].width == out->n_heads
                   ? NULL
                   : "not a factor for each head";
    case MTP_SCALE_BY_POSITION:
        if (op->axis != MTP_TOKENS || op->n[0] < 1 || op->n[1] < 0 || op->n[1] > INT32_MAX)
            return "rows of other positions, or no parts of these";
        return is_alike(in, out) ? NULL : "rows of different shapes";
    case MTP_SCALE_CHOSEN:
        if (!op->weights[0] || !are_chosen(plan, at, &in[1], in[0].n_heads, op->n[0]))
            return "ids of more experts than there are factors for";
        return is_alike(in, out) && in[0].n_heads <= in[1].width ? NULL
                                                                 : "rows of different shapes";
    case MTP_MIX:
        return in[0].width == out->width && in[0].n_heads <= in[1].width
                   ? NULL
                   : "not a share for each rank";
    case MTP_ADD_CHOSEN:
        if (!is_alike(in, out) || in[0].n_heads != 1)
            return "rows of different shapes";
        return in[1].width == out->width && in[1].n_heads <= in[2].width &&
                       in[1].n_heads <= in[3].width
                   ? NULL
                   : "not an id and a share for each rank";
    case MTP_ANGLES:
        return 2 * op->n[0] <= out->width ? NULL : "no room for the angles";
    case MTP_ROPE:
        return is_alike(in, out) && op->n[0] >= 0 && 2 * op->n[0] <= in[0].width &&
                       2 * op->n[0] <= in[1].width
                   ? NULL
                   : "more pairs than a head, or the angles, have";
    case MTP_REMEMBER:
        if (op->axis != MTP_TOKENS)
            return "rows of other places";
        return fits_page(bounds, op, in[0].n_heads, in[0].width, op->n[1] < 0 ? 0 : in[1].width) &&
                       (op->n[1] < 0 || in[1].n_heads == in[0].n_heads)
                   ? NULL
                   : "keys and values that no page has room for";
    case MTP_ATTENTION:
        if (op->axis != MTP_TOKENS)
            return "rows of other places";
        if (op->n[2] < 1 || in->n_heads < 1 || in->n_heads % op->n[2] ||
            in->n_heads != out->n_heads)
            return "query heads that do not share key heads evenly";
        if (op->n[5] > 1 && !fits_ranges(bounds, op, &out[1], out->n_heads, out->width))
            return "no room for the ranges that threads share out";
        return fits_page(bounds, op, op->n[2], in->width, op->n[1] < 0 ? 0 : out->width) &&
                       (op->n[1] >= 0 || out->width <= in->width)
                   ? NULL
                   : "keys and values that no page has room for";
    case MTP_MERGE:
        return op->axis == MTP_TOKENS && op->memory >= 0 && op->memory < bounds->n_groups &&
                       fits_ranges(bounds, op, in, out->n_heads, out->width)
                   ? NULL
                   : "ranges of another attention";
    case MTP_CAUSAL_CONV:
        return misfit_of_conv(op, bounds);
    case MTP_BLOCK_MEAN:
    case MTP_BLOCK_MIX:
        if (op->axis != MTP_TOKENS || !is_alike(in, out) || in->n_heads != 1)
            return "rows of different shapes";
        if (op->kind == MTP_BLOCK_MIX && !op->weights[0])
            return "no weight for each two rows of a block";
        return op->n[0] >= 1 && op->n[0] <= MTP_BLOCK_ROWS ? NULL : "no size of a block";
    case MTP_BLOCK_CONV:
        if (op->axis != MTP_TOKENS || !is_alike(in, out) || in->n_heads != 1)
            return "rows of different shapes";
        if (op->n[1] < 1 || op->n[1] > MTP_TAPS || !op->weights[0])
            return "more taps than there is room for";
        if (op->n[2] < 1 || op->n[2] > in->width || in->width % op->n[2] || in[1].n_heads != 1 ||
            in[1].width != op->n[1] * op->n[2])
            return "not a change for each tap and group";
        return op->n[0] >= 1 && op->n[0] <= MTP_BLOCK_ROWS ? NULL : "no size of a block";
    case MTP_KEEP_BEST:
        if (!is_alike(in, out) || in->n_heads != 1)
            return "rows of different shapes";
        return op->n[0] >= 1 && op->n[0] <= MTP_MOST_KEPT ? NULL
                                                          : "more values than there is room for";
    case MTP_FIND_BEST:
        if (op->n[0] < 1 || op->n[0] > MTP_MOST_KEPT || op->n[0] > in->width || in->n_heads != 1)
            return "more values than there is room for";
        return out[0].n_heads == 1 && out[0].width == op->n[0] && out[1].n_heads == op->n[0] &&
                       out[1].width == 2
                   ? NULL
                   : "not an id and a share for each value";
    case MTP_BLOCK_ATTENTION:
    case MTP_BLOCK_WALK:
        return misfit_of_candidates(plan, at);
    case MTP_DELTA_RULE:
        return misfit_of_delta(op, bounds);
    case MTP_ADD:
    case MTP_MUL:
    case MTP_GATED:
        return is_alike(&in[0], out) && is_alike(&in[1], out) ? NULL : "rows of different shapes";
    case MTP_SCALE_BY:
    case MTP_SHIFT_BY:
        if (!op->weights[0])
            return "no weight for each value";
        if (op->n[0] != 0 && op->n[0] != out->width)
            return "weights of a head that are not for each of its values";
        return is_alike(in, out) ? NULL : "rows of different shapes";
    case MTP_XIELU:
        if (!op->weights[0])
            return "no numbers of xIELU";
        return is_alike(in, out) ? NULL : "rows of different shapes";
    case MTP_TAKE:
        return op->axis == MTP_OUTPUTS && is_alike(in, out) ? NULL : "rows of different shapes";
    case MTP_COPY:
    case MTP_RMS_NORM:
    case MTP_L2_NORM:
    case MTP_LAYER_NORM:
    case MTP_GAUSSIAN_TOPK:
    case MTP_SCALE:
    case MTP_CLAMP:
    case MTP_ACTIVATION:
        return is_alike(in, out) ? NULL : "rows of different shapes";
    case MTP_KINDS:
        break;
    }
    return "a kind of operation that is not checked here";
}
