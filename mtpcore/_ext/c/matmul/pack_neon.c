#include <arm_neon.h>
#include <stdint.h>

/* A register holds 4 words of one row; transposed 4 x 4, 4 rows of one word. */
static inline void pack_words(const uint8_t *from, int64_t row_bytes, uint8_t *to,
                              int64_t line_bytes)
{
    for (int r = 0; r < 16; r += 4, from += 4 * row_bytes, to += 16) {
        uint32x4_t row[4];
        for (int i = 0; i < 4; i++)
            row[i] = vreinterpretq_u32_u8(vld1q_u8(from + i * row_bytes));
        const uint64x2_t a = vreinterpretq_u64_u32(vtrn1q_u32(row[0], row[1]));
        const uint64x2_t b = vreinterpretq_u64_u32(vtrn2q_u32(row[0], row[1]));
        const uint64x2_t c = vreinterpretq_u64_u32(vtrn1q_u32(row[2], row[3]));
        const uint64x2_t d = vreinterpretq_u64_u32(vtrn2q_u32(row[2], row[3]));
        vst1q_u8(to, vreinterpretq_u8_u64(vtrn1q_u64(a, c)));
        vst1q_u8(to + line_bytes, vreinterpretq_u8_u64(vtrn1q_u64(b, d)));
        vst1q_u8(to + 2 * line_bytes, vreinterpretq_u8_u64(vtrn2q_u64(a, c)));
        vst1q_u8(to + 3 * line_bytes, vreinterpretq_u8_u64(vtrn2q_u64(b, d)));
    }
}

#include "matmul/pack.inc"

PACKERS(neon)
