/* Recurrent layers: what rows compute, and the bases and logs that they leave, behind a base and any
 * number of replayed rows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "batch.h"
#include "compare.h"
#include "recurrent/delta_step.h"
#include "recurrent/states.h"

enum { SLOTS = 2, READ = 0, OPENED = 1, BEGIN = 40, MOST_ROWS = 24, MOST_WIDTH = 1200 };

/* Where the rows of a pass come from, and where they go. */
typedef enum { FROM_ZEROS, IN_THE_LOG, IN_ANOTHER_SLOT, FURTHER_ON } way_on;
static const char *const ways[] = {"from zeros", "in the log", "in another slot", "further on"};

typedef struct {
    const mtp_op *ops;
    int64_t n_ops, out_values, slot_bytes;
    float *const *buffers;
    const char *slots; /* what they hold before the pass */
    const int32_t *parent;
    way_on way;
    int64_t n_replayed, n, base_at, step; /* from one number of replayed rows to the next */
} pass;

/* Rows of the log are scattered, as they are behind the path of a tree. */
static int32_t scattered(int64_t i) { return (int32_t)((i * 5 + 3) % MTP_LOG); }

/* What memory/recurrent.py writes for these rows: the table's columns. */
static void decide(const pass *p, int32_t *entry)
{
    const int32_t end = BEGIN + (int32_t)p->n, base = BEGIN + (int32_t)p->base_at;
    const int32_t read_base = BEGIN - (int32_t)p->n_replayed;
    for (int64_t i = 0; i < MTP_LOG; i++)
        entry[MTP_LOGGED + i] = scattered(i);
    entry[MTP_BEGIN] = BEGIN;
    entry[MTP_END] = end;
    entry[MTP_READ_SLOT] = p->way == FROM_ZEROS ? -1 : READ;
    entry[MTP_READ_BASE] = read_base;
    entry[MTP_OPENED_SLOT] = p->way == IN_THE_LOG ? -1 : OPENED;
    entry[MTP_OPENED_BASE] = base;
    if (p->way == FURTHER_ON) { /* an earlier part of the same rows has opened the slot */
        entry[MTP_BEGIN] = read_base - 1;
        entry[MTP_OPENED_BASE] = read_base;
    }
}

/* The slots behind the pass, then the rows of the last operation. */
static void pass_on(const void *of, void *results)
{
    const pass *p = of;
    int32_t entry[MTP_STATE_COLUMNS];
    decide(p, entry);
    char *slots = results;
    memcpy(slots, p->slots, (size_t)(SLOTS * p->slot_bytes));
    batch b = {.ops = p->ops,
               .n_ops = p->n_ops,
               .first = BEGIN,
               .n = p->n,
               .states = {slots, p->slot_bytes, SLOTS, entry},
               .parent = p->parent};
    memcpy(b.buffers, p->buffers, sizeof b.buffers);
    b.buffers[5] = (float *)(slots + SLOTS * p->slot_bytes);
    memset(b.buffers[5], 0, (size_t)p->out_values * sizeof(float));
    run_batch(&b);
}

static void compare_pass(const char *layer, const pass *p)
{
    char what[90];
    snprintf(what, sizeof what, "%s, %s, %d replayed, %d rows%s", layer, ways[p->way],
             (int)p->n_replayed, (int)p->n, p->parent ? " of a tree" : "");
    compare(what, pass_on, p, (size_t)(SLOTS * p->slot_bytes + p->out_values * 4), ONE_NAN);
}

/* Every way on, behind 0 to 16 replayed rows, with chains and trees of some lengths. */
static void compare_passes(const char *layer, pass p)
{
    static const int32_t tree[] = {-1, 0, 0, 1, 2, 2, -1, 6};
    static const int64_t lengths[] = {1, 2, 4, 8, 17, 21};
    for (p.way = FROM_ZEROS; p.way <= FURTHER_ON; p.way++)
        for (p.n_replayed = 0; p.n_replayed < MTP_LOG; p.n_replayed += p.step)
            for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
                p.n = lengths[i];
                p.base_at = p.n > MTP_LOG ? p.n - MTP_LOG : 0;
                const int is_logged = p.way == IN_THE_LOG || p.way == FURTHER_ON;
                if ((is_logged && p.n_replayed + p.n > MTP_LOG) ||
                    (p.way == FROM_ZEROS && p.n_replayed > 0))
                    continue;
                p.parent = NULL;
                compare_pass(layer, &p);
                p.parent = tree;
                if (p.n == 8 || p.n == 4)
                    compare_pass(layer, &p);
            }
}

static void compare_convolutions(float *const buffers[6], const char *slots)
{
    for (int64_t channels = 5; channels <= 150; channels += 47)
        for (int64_t taps = 1; taps <= 4; taps += 3)
            for (int silu = 0; silu < 2; silu++) {
                const int64_t base = (taps - 1) * channels * 4;
                const mtp_op op = {.kind = MTP_CAUSAL_CONV,
                                   .axis = MTP_TOKENS,
                                   .in = {view(0, 1, channels)},
                                   .out = {view(5, 1, channels)},
                                   .weights = {buffers[1]},
                                   .n = {0, base, silu, taps}};
                compare_passes("convolution",
                               (pass){.ops = &op,
                                      .n_ops = 1,
                                      .out_values = MOST_ROWS * channels,
                                      .slot_bytes = (base + MTP_LOG * channels * 4 + 63) / 64 * 64,
                                      .buffers = buffers,
                                      .slots = slots,
                                      .step = channels == 5 ? 1 : 5});
            }
}

/* Heads that share one key head share it in either order, so one is tried. */
static void compare_delta_rules(float *const buffers[6], const char *slots)
{
    static const char *const names[] = {"delta rule by head", "delta rule by channel",
                                        "delta rule by column"};
    static const int64_t shapes[][5] = {/* key heads, heads, widths of keys and values, steps */
                                        {2, 4, 6, 5, 1},
                                        {1, 3, 20, 24, 7},
                                        {1, 1, 32, 32, 8}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int is_tiled = 0; is_tiled < 2 && is_tiled < shapes[i][0]; is_tiled++)
            for (int decays = 0; decays < DECAYS; decays++) {
                const int32_t n_key_heads = (int32_t)shapes[i][0], n_heads = (int32_t)shapes[i][1];
                const int64_t k = shapes[i][2], v = shapes[i][3];
                const int by_column = decays == DECAY_BY_COLUMN;
                const mtp_delta d = {n_heads,  n_key_heads, k,     v,
                                     is_tiled, decays,      i > 0, by_column ? buffers[4] : NULL};
                const int64_t base = mtp_delta_base(&d) * 4;
                const int64_t log = MTP_LOG * mtp_delta_logged(&d) * 4;
                const mtp_op op = {
                    .kind = MTP_DELTA_RULE,
                    .axis = MTP_TOKENS,
                    .in = {view(0, n_key_heads, k), view(1, n_key_heads, k), view(2, n_heads, v),
                           decays ? view(3, n_heads, mtp_delta_decays(&d)) : view(3, 1, n_heads),
                           view(4, 1, n_heads)},
                    .out = {view(5, n_heads, v)},
                    .weights = {d.rates},
                    .n = {0, base, is_tiled, decays, d.corrects}};
                compare_passes(names[decays], (pass){.ops = &op,
                                                     .n_ops = 1,
                                                     .out_values = MOST_ROWS * n_heads * v,
                                                     .slot_bytes = (base + log + 63) / 64 * 64,
                                                     .buffers = buffers,
                                                     .slots = slots,
                                                     .step = is_tiled ? 5 : shapes[i][4]});
            }
}

/* What a layer's heads go through: a norm, times the activation of their gates. */
static void compare_gated_norms(float *const buffers[6], const char *slots)
{
    for (int64_t width = 5; width <= 150; width += 29) {
        const mtp_op ops[] = {{.kind = MTP_RMS_NORM,
                               .axis = MTP_TOKENS,
                               .sharing = MTP_BY_ROWS,
                               .in = {view(0, 4, width)},
                               .out = {view(5, 4, width)},
                               .weights = {buffers[2]},
                               .f = 1e-6f},
                              {.kind = MTP_GATED,
                               .axis = MTP_TOKENS,
                               .sharing = MTP_BY_ROWS,
                               .in = {view(1, 4, width), view(5, 4, width)},
                               .out = {view(5, 4, width)},
                               .n = {MTP_SILU}}};
        const pass p = {.ops = ops,
                        .n_ops = 2,
                        .out_values = MOST_ROWS * 4 * width,
                        .buffers = buffers,
                        .slots = slots,
                        .n = 3};
        compare_pass("gated norm", &p);
    }
}

void compare_recurrent(void)
{
    const size_t n_values = MOST_ROWS * MOST_WIDTH, n_slots = 1 << 18;
    float *buffers[6], *slots = zeros(n_slots * sizeof *slots, LINE);
    for (int i = 0; i < 6; i++)
        buffers[i] = zeros(n_values * sizeof(float), LINE);
    for (int wild = 0; wild < 2; wild++) {
        for (int i = 0; i < 5; i++)
            for (size_t j = 0; j < n_values; j++)
                buffers[i][j] = wild && j % 7 == 0 ? random_bits() : 0.3f * random_float();
        for (size_t j = 0; j < n_values; j++) /* decays are logarithms */
            buffers[3][j] = buffers[3][j] < 0 ? buffers[3][j] : -buffers[3][j];
        for (size_t j = 0; j < n_slots; j++)
            slots[j] = wild && j % 31 == 0 ? random_bits() : 0.3f * random_float();
        compare_convolutions(buffers, (const char *)slots);
        compare_delta_rules(buffers, (const char *)slots);
        compare_gated_norms(buffers, (const char *)slots);
    }
    for (int i = 0; i < 6; i++)
        release(buffers[i]);
    release(slots);
}
