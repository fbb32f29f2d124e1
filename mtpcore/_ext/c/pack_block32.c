/* Blocks of 32 columns of GGUF rows into the blocks of packed groups. */
#include <string.h>

#include "pack.h"

/* Subtract 128 from four int8 codes and read them as uint8, or the reverse. */
static void copy_offset_codes(uint8_t *to, const uint8_t *from)
{
    for (int i = 0; i < 4; i++)
        to[i] = from[i] ^ 0x80;
}

static void copy_nibbles(uint8_t (*code)[32][4], int r, const uint8_t *from)
{
    for (int j = 0; j < 4; j++)
        memcpy(code[j][r], from + 4 * j, 4);
}

/* Bit k of four bytes is of column k; byte i of the result holds the bits of columns 4j + i. */
static void pack_fifth_bits(uint8_t to[4], const uint8_t *from)
{
    const uint32_t bits = from[0] | from[1] << 8 | from[2] << 16 | (uint32_t)from[3] << 24;
    for (int i = 0; i < 4; i++) {
        uint32_t every_fourth = bits >> i & 0x11111111u;
        every_fourth = (every_fourth | every_fourth >> 3) & 0x03030303u;
        every_fourth = (every_fourth | every_fourth >> 6) & 0x000f000fu;
        to[i] = (uint8_t)(every_fourth | every_fourth >> 12);
    }
}

void mtp_pack_q8_0(const uint8_t *from, int64_t n_blocks, int64_t b, int r, void *group)
{
    mtp_q8_0_block *block = (mtp_q8_0_block *)group + b;
    (void)n_blocks;
    memcpy(&block->scale[r], from, 2);
    for (int j = 0; j < 8; j++)
        copy_offset_codes(block->code[j][r], from + 2 + 4 * j);
}

void mtp_pack_q4_0(const uint8_t *from, int64_t n_blocks, int64_t b, int r, void *group)
{
    mtp_q4_0_block *block = (mtp_q4_0_block *)group + b;
    (void)n_blocks;
    memcpy(&block->scale[r], from, 2);
    copy_nibbles(block->code, r, from + 2);
}

void mtp_pack_q4_1(const uint8_t *from, int64_t n_blocks, int64_t b, int r, void *group)
{
    mtp_q4_1_block *block = (mtp_q4_1_block *)group + b;
    (void)n_blocks;
    memcpy(&block->scale[r], from, 2);
    memcpy(&block->min[r], from + 2, 2);
    copy_nibbles(block->code, r, from + 4);
}

void mtp_pack_q5_0(const uint8_t *from, int64_t n_blocks, int64_t b, int r, void *group)
{
    mtp_q5_0_block *block = (mtp_q5_0_block *)group + b;
    (void)n_blocks;
    memcpy(&block->scale[r], from, 2);
    pack_fifth_bits(block->fifth[r], from + 2);
    copy_nibbles(block->code, r, from + 6);
}

void mtp_pack_q5_1(const uint8_t *from, int64_t n_blocks, int64_t b, int r, void *group)
{
    mtp_q5_1_block *block = (mtp_q5_1_block *)group + b;
    (void)n_blocks;
    memcpy(&block->scale[r], from, 2);
    memcpy(&block->min[r], from + 2, 2);
    pack_fifth_bits(block->fifth[r], from + 4);
    copy_nibbles(block->code, r, from + 8);
}

void mtp_pack_iq4_nl(const uint8_t *from, int64_t n_blocks, int64_t b, int r, void *group)
{
    mtp_table_block *block = (mtp_table_block *)group + b;
    (void)n_blocks;
    memcpy(&block->scale[r], from, 2);
    copy_nibbles(block->code, r, from + 2);
}

/* The scale is 2 to the power of its byte minus 128; the two least are subnormal. */
void mtp_pack_mxfp4(const uint8_t *from, int64_t n_blocks, int64_t b, int r, void *group)
{
    mtp_table_block *block = (mtp_table_block *)group + b;
    const int exponent = from[0];
    (void)n_blocks;
    block->scale[r] = (uint16_t)(exponent < 2 ? 0x20 << exponent : (exponent - 1) << 7);
    copy_nibbles(block->code, r, from + 1);
}
