#include "batch.h"

#include <stdlib.h>

enum { MOST_BYTES = 8 << 20 };

void run_batch(const batch *b)
{
    static int32_t zero[PLACES], place[PLACES], base[PLACES], depth[PLACES], is_tree[PLACES];
    static int32_t before[PLACES], next[PLACES], first_rows[PLACES], tiles[PLACES + 1];
    static _Alignas(64) char memory[MOST_BYTES];
    char *scratch[1] = {memory};
    for (int64_t t = 0; t < b->n; t++)
        place[t] = (int32_t)(b->first + t);
    mtp_memory memories[1] = {b->memory};
    mtp_run run = {.n_rows = {b->n, b->n},
                   .tokens = zero,
                   .positions = place,
                   .seq = zero,
                   .place = place,
                   .outputs = zero,
                   .parent = b->parent,
                   .n_axes = 1,
                   .buffers = (void **)b->buffers,
                   .memory = memories,
                   .states = b->states,
                   .base = base,
                   .depth = depth,
                   .is_tree = is_tree,
                   .before = before,
                   .next = next,
                   .first_rows = first_rows,
                   .tiles = tiles,
                   .scratch = scratch};
    for (int64_t i = 0; i < b->n_ops; i++)
        if (mtp_scratch_bytes(&b->ops[i]) > sizeof memory)
            abort();
    const mtp_plan plan = {.ops = b->ops, .n_ops = b->n_ops, .n_threads = 1};
    mtp_plan_run(&plan, &run);
}
