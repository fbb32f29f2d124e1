/* Blocks that are made of rows of values, with weights for their columns and without. */
#include <math.h>
#include <stdio.h>

#include "compare.h"
#include "encode/encode.h"
#include "matmul/weight_types.h"

enum { ROWS = 3, COLUMNS = 768 };

typedef struct {
    int32_t type;
    const float *values, *importance;
} task;

static void encode(const void *of, void *results)
{
    const task *t = of;
    mtp_encode(t->type, ROWS, COLUMNS, t->values, t->importance, results);
}

/* As weights are; with zeros among them; of all sizes; and too small for a scale to have an inverse. */
static float value(int kind)
{
    const float x = random_float();
    switch (kind) {
    case 0:
        return 0.05f * x;
    case 1:
        return random_word() % 3 == 0 ? x : 0;
    case 2:
        return ldexpf(x, (int)(random_word() % 120) - 60);
    default:
        return ldexpf(x, -140);
    }
}

void compare_encoded(void)
{
    for (int32_t type = 0; type < MTP_TYPES; type++) {
        if (!mtp_encodes(type))
            continue;
        for (int kind = 0; kind < 4; kind++) {
            float *values = zeros(ROWS * COLUMNS * sizeof(float), LINE);
            float *importance = zeros(COLUMNS * sizeof(float), LINE);
            for (int i = 0; i < ROWS * COLUMNS; i++)
                values[i] = value(kind);
            for (int i = 0; i < COLUMNS; i++)
                importance[i] = random_word() % 8 == 0 ? 0 : fabsf(random_float());
            const size_t n_bytes = (size_t)(ROWS * mtp_row_bytes(type, COLUMNS));
            for (int weighted = 0; weighted < 2; weighted++) {
                const task t = {type, values, weighted ? importance : NULL};
                char what[80];
                snprintf(what, sizeof what, "blocks of type %d, values of kind %d%s", (int)type,
                         kind, weighted ? ", weighted" : "");
                compare(what, encode, &t, n_bytes, EVERY_BIT);
            }
            release(values);
            release(importance);
        }
    }
}
