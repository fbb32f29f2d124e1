/* Rows of a file in the order in which products read them. layout.py says what a Field is, where a
 * type's numbers lie in its blocks, and which planes they go to.
 *
 * raw has matrices of n_rows, each row n_blocks of BYTES; together they are n_tiles, which begin at
 * first_tile. CODES and UPPER are the fields of a code's bits. A thread packs 16 codes, those of a lane
 * in 32 columns, so that a block of a tile has a thread for each of its columns: the first of them also
 * pack four whole factors each, or a scale. Rows that the matrix does not have are zeros.
 * Grid: tiles * columns / 256 rounded up. Block: 256.
 */
#include "float16.cuh"
#include "quantised.cuh"

#define THREADS 256

struct Field {
    int width, at, run;
};

/* A block of each row of a tile. */
struct Blocks {
    const unsigned char *first;
    size_t apart;
    int n_rows; /* those that the matrix has */

    __device__ __forceinline__ unsigned byte(int row, int at) const
    {
        return row < n_rows ? first[row * apart + at] : 0u;
    }

    __device__ __forceinline__ unsigned number(Field field, int row, int i) const
    {
        const int n_of_run = 8 / field.width * field.run;
        const int at = field.at + i / n_of_run * field.run + i % field.run;
        return byte(row, at) >> i % n_of_run / field.run * field.width & ((1u << field.width) - 1);
    }

    /* The numbers from i on, in a byte each. */
    __device__ __forceinline__ unsigned four(Field field, int row, int i) const
    {
        unsigned bytes = 0;
        for (int j = 0; j < 4; j++)
            bytes |= number(field, row, i + j) << 8 * j;
        return bytes;
    }

#if SUB
    /* A whole factor, or of the second set a minimum. */
    __device__ __forceinline__ unsigned factor(int row, int set, int part) const
    {
#if SIXES
        const unsigned six = byte(row, SIXES + 4 * set + part % 4);
        const unsigned four = byte(row, SIXES + 8 + part % 4) >> 4 * set & 15;
        return part < 4 ? six & 63 : four | six >> 6 << 4;
#elif defined(ABOVE)
        return (number({FACTORS}, row, part) | number({ABOVE}, row, part) << 4) - 32 & 255;
#else
        return number({FACTORS}, row, part);
#endif
    }
#endif
};

/* Registers of a product's left side as their LOW bits are stored, and as the HIGH bits are. */
__device__ __forceinline__ Low pack_low(const unsigned (&a)[4])
{
#if LOW == 8
    return {a[0], a[1], a[2], a[3]};
#elif defined(TABLE)
    unsigned in_order[4]; /* eight codes need no more than a half of these */
    for (int i = 0; i < 4; i++) {
        const unsigned pairs = a[i] | a[i] >> 4;
        in_order[i] = (pairs & 0xffu) | (pairs >> 8 & 0xff00u);
    }
    return {in_order[0] | in_order[2] << 16, in_order[1] | in_order[3] << 16};
#elif LOW == 4
    return {a[0] | a[2] << 4, a[1] | a[3] << 4};
#else
    return a[0] | a[1] << 2 | a[2] << 4 | a[3] << 6;
#endif
}

#if HIGH
__device__ __forceinline__ High pack_high(const unsigned (&a)[4])
{
#if HIGH == 2
    return a[0] | a[1] << 2 | a[2] << 4 | a[3] << 6;
#else
    const unsigned bits = a[0] | a[1] << 1 | a[2] << 2 | a[3] << 3;
    return (High)(bits | bits >> 12);
#endif
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
    pack(const unsigned char *__restrict__ raw, Low *__restrict__ low, High *__restrict__ high,
         unsigned *__restrict__ factors, Scale *__restrict__ scales, int n_rows, int n_blocks,
         int n_tiles, int first_tile)
{
    const unsigned block = (blockIdx.x * THREADS + threadIdx.x) / BLOCK;
    const int item = (int)(threadIdx.x % BLOCK), tile = (int)(block / n_blocks);
    if (tile >= n_tiles)
        return;
    const int tiles_of_matrix = (n_rows + 15) / 16, begin = tile % tiles_of_matrix * 16;
    const size_t row = (size_t)(tile / tiles_of_matrix) * n_rows + begin;
    const Blocks blocks = {raw + (row * n_blocks + block % n_blocks) * BYTES,
                           (size_t)n_blocks * BYTES, n_rows - begin};
    const size_t to = (size_t)first_tile * n_blocks + block;

    const int g = item % 32 / 4, column = item / 32 * 32 + item % 4 * 4;
    unsigned codes[4];
    for (int i = 0; i < 4; i++)
        codes[i] = blocks.four({CODES}, g + i % 2 * 8, column + i / 2 * 16);
    low[to * BLOCK + item] = pack_low(codes);
#if HIGH
    for (int i = 0; i < 4; i++)
        codes[i] = blocks.four({UPPER}, g + i % 2 * 8, column + i / 2 * 16);
    high[to * BLOCK + item] = pack_high(codes);
#endif

#if SUB
    if (item < SETS * PARTS * 4) {
        const int of_set = item % (PARTS * 4), part = of_set % (PARTS / 4) * 4;
        unsigned four = 0;
        for (int j = 0; j < 4; j++)
            four |= blocks.factor(of_set / (PARTS / 4), item / (PARTS * 4), part + j) << 8 * j;
        factors[to * (SETS * PARTS * 4) + item] = four;
    }
#endif
    if (item < (MINIMA ? 32 : 16)) {
        const int at = SCALES + item / 16 * (int)sizeof(Scale);
        unsigned scale = 0;
        for (int j = 0; j < (int)sizeof(Scale); j++)
            scale |= blocks.byte(item % 16, at + j) << 8 * j;
        scales[to * (MINIMA ? 32 : 16) + item] = (Scale)scale;
    }
}
