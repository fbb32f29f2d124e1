/* Blocks of 256 columns of GGUF rows into the blocks of packed halves of a group. */
#include <string.h>

#include "pack.h"

/* Block `b` of the half of a group that row `row` is in. */
static void *block_of(int type, void *group, int64_t n_blocks, int64_t b, int row)
{
    return (char *)group + (row / 16 * n_blocks + b) * mtp_block256_bytes(type);
}

static float float_at(const uint8_t *half)
{
    uint16_t value;
    memcpy(&value, half, 2);
    return mtp_float_from_half(value);
}

void mtp_pack_q2_k(const uint8_t *from, int64_t n_blocks, int64_t b, int row, void *group)
{
    mtp_q2_k_block *block = block_of(MTP_Q2_K, group, n_blocks, b, row);
    const int r = row % 16;
    memcpy(&block->scale[r], from + 80, 2);
    memcpy(&block->min[r], from + 82, 2);
    for (int s = 0; s < 16; s++)
        block->sub_scale_min[s][r] = from[s];
    for (int j = 0; j < 16; j++)
        memcpy(block->code[j / 8][j % 8][r], from + 16 + 4 * j, 4);
}

void mtp_pack_q3_k(const uint8_t *from, int64_t n_blocks, int64_t b, int row, void *group)
{
    mtp_q3_k_block *block = block_of(MTP_Q3_K, group, n_blocks, b, row);
    const uint8_t *third = from, *code = from + 32, *low = from + 96, *high = from + 104;
    const int r = row % 16;
    block->scale[r] = float_at(from + 108);
    for (int s = 0; s < 16; s++) {
        const int four_bits = low[s % 8] >> (s / 8 * 4) & 15;
        block->sub_scale[s][r] = (int8_t)((four_bits | (high[s % 4] >> (s / 4 * 2) & 3) << 4) - 32);
    }
    for (int h = 0; h < 2; h++)
        for (int j = 0; j < 8; j++)
            memcpy(block->pair[h][j / 2].code[j % 2][r], code + 32 * h + 4 * j, 4);
    for (int h = 0; h < 2; h++) /* byte k has the bits of column k of the eight quarters */
        for (int k = 0; k < 32; k += 8)
            for (int i = 0; i < 4; i++) {
                const int first = third[k + i] >> (4 * h) & 15;
                const int second = third[k + 4 + i] >> (4 * h) & 15;
                block->pair[h][k / 8].third[r][i] = (uint8_t)(first | second << 4);
            }
}

/* The 6-bit scale and min of sub-block `s` from the 12 bytes in which GGUF keeps eight of them. */
static void unpack_scale_min(const uint8_t *bytes, int s, int *scale, int *min)
{
    if (s < 4) {
        *scale = bytes[s] & 63;
        *min = bytes[s + 4] & 63;
    } else {
        *scale = (bytes[s + 4] & 15) | bytes[s - 4] >> 6 << 4;
        *min = bytes[s + 4] >> 4 | bytes[s] >> 6 << 4;
    }
}

/* The first 16 bytes of Q4_K and Q5_K. */
static void pack_six_bit_scales(const uint8_t *from, int r, mtp_six_bit_scales *scales)
{
    memcpy(&scales->scale[r], from, 2);
    memcpy(&scales->min[r], from + 2, 2);
    for (int s = 0; s < 8; s++) {
        int scale, min;
        unpack_scale_min(from + 4, s, &scale, &min);
        scales->low[s / 2][s % 2][r] = (uint8_t)((scale & 15) | (min & 15) << 4);
        const int high = (scale >> 4 | min >> 4 << 2) << (s % 2 * 4);
        scales->high[s / 2][r] = (uint8_t)(s % 2 ? scales->high[s / 2][r] | high : high);
    }
}

void mtp_pack_q4_k(const uint8_t *from, int64_t n_blocks, int64_t b, int row, void *group)
{
    mtp_q4_k_block *block = block_of(MTP_Q4_K, group, n_blocks, b, row);
    pack_six_bit_scales(from, row % 16, &block->scales);
    for (int j = 0; j < 32; j++)
        memcpy(block->code[j / 8][j % 8][row % 16], from + 16 + 4 * j, 4);
}

void mtp_pack_q5_k(const uint8_t *from, int64_t n_blocks, int64_t b, int row, void *group)
{
    mtp_q5_k_block *block = block_of(MTP_Q5_K, group, n_blocks, b, row);
    const uint8_t *fifth = from + 16, *code = from + 48;
    const int r = row % 16;
    pack_six_bit_scales(from, r, &block->scales);
    for (int c = 0; c < 4; c++) {
        for (int j = 0; j < 8; j++)
            memcpy(block->chunk[c].code[j][r], code + 32 * c + 4 * j, 4);
        for (int k = 0; k < 32; k += 16) /* byte k has the bits of column k of the sub-blocks */
            for (int i = 0; i < 4; i++) {
                int bits = 0;
                for (int j = 0; j < 4; j++) {
                    const int two_bits = fifth[k + 4 * j + i] >> (2 * c) & 3;
                    bits |= ((two_bits & 1) | (two_bits & 2) << 3) << j;
                }
                block->chunk[c].fifth[k / 16][r][i] = (uint8_t)bits;
            }
    }
}

void mtp_pack_q6_k(const uint8_t *from, int64_t n_blocks, int64_t b, int row, void *group)
{
    mtp_q6_k_block *block = block_of(MTP_Q6_K, group, n_blocks, b, row);
    const int r = row % 16;
    block->scale[r] = float_at(from + 208);
    for (int s = 0; s < 16; s++)
        block->sub_scale[s][r] = (int8_t)from[192 + s];
    for (int h = 0; h < 2; h++)
        for (int j = 0; j < 8; j++) {
            memcpy(block->code[h][j][0][r], from + 64 * h + 4 * j, 4);
            memcpy(block->code[h][j][1][r], from + 64 * h + 32 + 4 * j, 4);
            memcpy(block->code[h][j][2][r], from + 128 + 32 * h + 4 * j, 4);
        }
}

/* A sub-block's 16 bytes hold its columns 0-15 in low nibbles and 16-31 in high ones; packed bytes
 * hold the same column of two sub-blocks, as in Q4_K. */
void mtp_pack_iq4_xs(const uint8_t *from, int64_t n_blocks, int64_t b, int row, void *group)
{
    mtp_iq4_xs_block *block = block_of(MTP_IQ4_XS, group, n_blocks, b, row);
    const uint8_t *low = from + 4;
    const int high = from[2] | from[3] << 8, r = row % 16;
    block->scale[r] = float_at(from);
    for (int s = 0; s < 8; s++) {
        const int four_bits = low[s / 2] >> (s % 2 * 4) & 15;
        block->sub_scale[s][r] = (int8_t)((four_bits | (high >> (2 * s) & 3) << 4) - 32);
    }
    for (int c = 0; c < 4; c++)
        for (int k = 0; k < 16; k++) {
            const int even = from[8 + 32 * c + k], odd = from[8 + 32 * c + 16 + k];
            block->code[c][k / 4][r][k % 4] = (uint8_t)((even & 15) | (odd & 15) << 4);
            block->code[c][4 + k / 4][r][k % 4] = (uint8_t)(even >> 4 | (odd & 0xf0));
        }
}
