/* Operations that compute, attention among them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "batch.h"
#include "compare.h"
#include "core/lanes_math.h"

enum { ROWS = 3, MOST_VALUES = 4096 };

/* Buffer 3 of a batch of ROWS rows, then buffer 4. */
static void compute_rows(const void *of, void *results)
{
    batch b = *(const batch *)of;
    memset(b.buffers[3], 0, 2 * MOST_VALUES * sizeof(float));
    run_batch(&b);
    memcpy(results, b.buffers[3], 2 * MOST_VALUES * sizeof(float));
}

static void compare_op(const char *name, const mtp_op *op, float *const buffers[6])
{
    batch b = {.ops = op, .n_ops = 1, .n = ROWS};
    memcpy(b.buffers, buffers, sizeof b.buffers);
    compare(name, compute_rows, &b, 2 * MOST_VALUES * sizeof(float), ONE_NAN);
}

static void compare_values(float *const buffers[6], int32_t n_heads, int64_t width)
{
    const float *weights = buffers[2];
    mtp_op op = {.axis = MTP_TOKENS,
                 .sharing = MTP_BY_ROWS,
                 .in = {view(0, n_heads, width), view(1, n_heads, width)},
                 .out = {view(3, n_heads, width)},
                 .f = 1e-5f};
    static const mtp_kind kinds[] = {MTP_RMS_NORM, MTP_L2_NORM, MTP_LAYER_NORM, MTP_ADD,
                                     MTP_MUL,      MTP_SCALE,   MTP_CLAMP};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (int weighted = 0; weighted < 2; weighted++) {
            op.kind = kinds[i];
            op.weights[0] = weighted ? weights : NULL;
            op.weights[1] = weighted ? weights + width : NULL;
            compare_op(mtp_kind_name(op.kind), &op, buffers);
        }
    op.weights[0] = weights;
    for (op.kind = MTP_SCALE_BY; op.kind <= MTP_SHIFT_BY; op.kind++)
        compare_op(mtp_kind_name(op.kind), &op, buffers);
    for (op.n[0] = MTP_SILU; op.n[0] <= MTP_SOFTPLUS; op.n[0]++)
        for (int gated = 0; gated < 2; gated++) {
            char what[50];
            op.kind = gated ? MTP_GATED : MTP_ACTIVATION;
            snprintf(what, sizeof what, "%s %d", mtp_kind_name(op.kind), (int)op.n[0]);
            compare_op(what, &op, buffers);
        }
    for (int pairs = 0; pairs < 2; pairs++) {
        op.kind = MTP_ROPE;
        op.in[1] = view(1, 1, width);
        op.n[0] = width / 2 - 1;
        op.n[1] = pairs;
        compare_op("rope", &op, buffers);
    }
    op.kind = MTP_MUL_HEADS;
    op.in[1] = view(1, 1, n_heads);
    compare_op("mul_heads", &op, buffers);
    op.kind = MTP_MIX;
    op.out[0] = view(3, 1, width);
    compare_op("mix", &op, buffers);
}

static void compare_routes(float *const buffers[6], int64_t n_experts)
{
    for (int softmax = 0; softmax < 2; softmax++)
        for (int groups = 1; groups <= 4; groups += 3) {
            const mtp_op op = {.kind = MTP_ROUTE,
                               .in = {view(0, 1, n_experts)},
                               .out = {view(3, 1, 4), view(4, 1, 4)},
                               .weights = {softmax ? NULL : buffers[2]},
                               .n = {4, softmax, 1, groups, (groups + 1) / 2, 2},
                               .f = 2.5f};
            compare_op("route", &op, buffers);
        }
}

typedef struct {
    mtp_kv_type type;
    int64_t n_key_heads, shared, k_width, v_width, window, n_rows;
    int is_latent, has_sinks, is_adjusted; /* scores are capped, and less by distance */
    int64_t max_distance;                  /* of a position bias; 0: there is none */
    float *const *buffers;
} attention;

static int64_t page_bytes(const attention *a)
{
    const int64_t v_bytes = a->is_latent ? 0 : mtp_head_bytes(a->type, a->v_width);
    return a->n_key_heads * (mtp_head_bytes(a->type, a->k_width) + v_bytes);
}

enum { PAGES = (PLACES + MTP_PAGE - 1) / MTP_PAGE };

/* Pages of all places' keys and values, and what the last rows attend to. */
static void attend(const void *of, void *results)
{
    const attention *a = of;
    int32_t tables[PAGES];
    for (int32_t i = 0; i < PAGES; i++)
        tables[i] = i * 5 % PAGES;
    const int32_t first = 0, length = PLACES;
    memset(results, 0, (size_t)(PAGES * page_bytes(a)));
    const mtp_memory memory = {{results, page_bytes(a), a->type}, tables, &first, &length, PAGES};
    const double cap = 3;
    const int64_t k_bytes = a->n_key_heads * mtp_head_bytes(a->type, a->k_width);
    const int32_t n_heads = (int32_t)(a->n_key_heads * a->shared);
    const mtp_op remember = {.kind = MTP_REMEMBER,
                             .in = {view(0, (int32_t)a->n_key_heads, a->k_width),
                                    view(1, (int32_t)a->n_key_heads, a->v_width)},
                             .n = {0, a->is_latent ? -1 : k_bytes}};
    const mtp_op attention = {
        .kind = MTP_ATTENTION,
        .in = {view(2, n_heads, a->k_width)},
        .out = {view(3, n_heads, a->v_width)},
        .weights = {a->has_sinks ? a->buffers[1] : NULL, a->max_distance ? a->buffers[2] : NULL,
                    a->is_adjusted ? a->buffers[1] : NULL},
        .numbers = a->is_adjusted ? &cap : NULL,
        .n = {0, a->is_latent ? -1 : k_bytes, a->n_key_heads, a->window, 0, 1, a->max_distance},
        .f = 0.3f};
    batch b = {.ops = &remember, .n_ops = 1, .n = PLACES, .memory = memory};
    memcpy(b.buffers, a->buffers, sizeof b.buffers);
    run_batch(&b);
    b.ops = &attention;
    b.first = PLACES - a->n_rows;
    b.n = a->n_rows;
    b.buffers[3] = (float *)((char *)results + PAGES * page_bytes(a));
    run_batch(&b);
}

static void compare_attentions(float *const buffers[6])
{
    static const char *const types[] = {"f32", "f16", "q8_0"};
    static const int64_t shapes[][7] = {/* key heads, shared, widths, window, rows, is latent */
                                        {2, 2, 64, 64, 0, 1, 0},
                                        {1, 3, 40, 24, 70, 5, 0},
                                        {1, 6, 72, 72, 0, 4, 0},
                                        {1, 4, 96, 64, 0, 2, 1},
                                        {2, 1, 128, 128, 300, 8, 0}};
    for (mtp_kv_type type = MTP_KV_F32; type <= MTP_KV_Q8_0; type++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            const int64_t *s = shapes[i];
            const attention a = {.type = type,
                                 .n_key_heads = s[0],
                                 .shared = s[1],
                                 .k_width = s[2],
                                 .v_width = s[3],
                                 .window = s[4],
                                 .n_rows = s[5],
                                 .is_latent = (int)s[6],
                                 .has_sinks = i % 2,
                                 .max_distance = i % 2 ? 0 : 40,
                                 .is_adjusted = i > 2,
                                 .buffers = buffers};
            const int64_t n_values = a.n_rows * a.n_key_heads * a.shared * a.v_width;
            char what[50];
            snprintf(what, sizeof what, "attention %zu, %s", i, types[type]);
            compare(what, attend, &a, (size_t)(PAGES * page_bytes(&a)) + 4 * (size_t)n_values,
                    ONE_NAN);
        }
}

void compare_operations(void)
{
    float *buffers[6];
    const size_t n = PLACES * 2 * 128;
    for (int i = 0; i < 6; i++)
        buffers[i] = zeros((n + 2 * MOST_VALUES) * sizeof(float), LINE);
    buffers[4] = buffers[3] + MOST_VALUES;
    for (int wild = 0; wild < 2; wild++) {
        for (int i = 0; i < 3; i++)
            for (size_t j = 0; j < n; j++)
                buffers[i][j] = wild && j % 3 ? random_bits() : 3 * random_float();
        for (int64_t width = 16; width <= 300; width += 71)
            compare_values(buffers, 4, width);
        compare_routes(buffers, 20);
        compare_routes(buffers, 64);
        if (!wild)
            compare_attentions(buffers);
    }
}
