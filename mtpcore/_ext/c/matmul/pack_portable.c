#include <stdint.h>
#include <string.h>

static inline void pack_words(const uint8_t *from, int64_t row_bytes, uint8_t *to,
                              int64_t line_bytes)
{
    for (int r = 0; r < 16; r++)
        for (int j = 0; j < 4; j++)
            memcpy(to + j * line_bytes + 4 * r, from + r * row_bytes + 4 * j, 4);
}

#include "matmul/pack.inc"

PACKERS(portable)
