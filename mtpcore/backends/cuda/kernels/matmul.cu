/* y[t][r] = sum_k w[r][k] x[t][k] + bias[r], quantised weights times int8 activations.
 *
 * One CTA makes 16 ROW_TILES outputs for 8 TOKEN_TILES slots (slots.cuh). Its 8 warps each walk a
 * fixed eighth of the blocks in ascending order. Products of a block are exact in int32 (one
 * tensor-core product, 16 x 32 by 32 x 8, for 32 columns); then one chain of fused multiply-adds
 * takes them in, times the two scales, and after it the block's minima. The eighths are added in
 * warp order. The split depends on the matrix alone, and a column of a product on its own token
 * alone: a token's bits are the same alone, in a batch, in tiles of any number, and beside any
 * neighbours. Missing tokens are columns of zeros.
 *
 * Weights lie in the order in which lanes read them: layout.py says how, and which variant a type
 * is. A code has LOW bits and HIGH more above them; it stands for itself less OFFSET, or for a place
 * in TABLE. BLOCK columns share a scale, and where SUB is not 0, as many of them a whole factor.
 * Where MINIMA, a second scale times a whole minimum (of a block of 32: minus one) is taken away.
 * Grid: (row tiles / ROW_TILES, slots / 8 / TOKEN_TILES rounded up, or tiles of group.cu).
 * Block: 256.
 */
#include "float16.cuh"
#include "slots.cuh"

#define WARPS 8
#define STEPS (BLOCK / 32)
#define STEPS_OF_WORD (SUB ? SUB / 8 : 1) /* four parts share a word of factors */
#define WIDTH (8 * TOKEN_TILES)

#ifndef MTPCORE_EMULATED
static __device__ __forceinline__ void multiply(int (&sum)[4], const unsigned (&a)[4], unsigned b0,
                                                unsigned b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=r"(sum[0]), "=r"(sum[1]), "=r"(sum[2]), "=r"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}
#endif

/* A scale of a block: float16, or for MXFP4 an exponent with an offset of 128. */
#if EXPONENTS
typedef unsigned char Scale;
static __device__ __forceinline__ float scale_of(Scale code)
{
    return __uint_as_float(code < 2 ? 0x00200000u << code : (unsigned)(code - 1) << 23);
}
#else
typedef unsigned short Scale;
static __device__ __forceinline__ float scale_of(Scale half) { return widen(half); }
#endif

/* A lane's codes of 32 columns: LOW bits of 16 codes, and HIGH bits of 16. */
#if LOW == 8
typedef uint4 Low;
#elif LOW == 4
typedef uint2 Low;
#else
typedef unsigned Low;
#endif
#if HIGH == 2
typedef unsigned High;
#else
typedef unsigned short High;
#endif

#define EACH_BYTE(byte) ((byte) * 0x01010101u)

#ifdef TABLE
/* The values of eight codes: of the low halves of bytes, and of the high ones. */
static __device__ __forceinline__ void look_up(unsigned codes, unsigned *low, unsigned *high)
{
    const unsigned table[4] = {TABLE};
    /* A code's lower three bits choose in each half of the table, the fourth chooses the half. */
    const unsigned halves = 0x32103210u | (codes & 0x88888888u) >> 1;
    unsigned values[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const unsigned places = codes >> 16 * i & 0x7777u;
        values[i] =
            __byte_perm(__byte_perm(table[0], table[1], places),
                        __byte_perm(table[2], table[3], places), halves >> 16 * i & 0x7777u);
    }
    *low = __byte_perm(values[0], values[1], 0x6420u);
    *high = __byte_perm(values[0], values[1], 0x7531u);
}
#endif

/* The registers of a product's left side: rows g and g + 8, columns 4q.. and 16 + 4q... */
static __device__ __forceinline__ void unpack(unsigned (&a)[4], const Low *low, const High *high,
                                              size_t at)
{
    const Low codes = low[at];
#if LOW == 8
    a[0] = codes.x, a[1] = codes.y, a[2] = codes.z, a[3] = codes.w;
#elif defined(TABLE)
    look_up(codes.x, &a[0], &a[2]);
    look_up(codes.y, &a[1], &a[3]);
#elif LOW == 4
    a[0] = codes.x & EACH_BYTE(15u), a[2] = codes.x >> 4 & EACH_BYTE(15u);
    a[1] = codes.y & EACH_BYTE(15u), a[3] = codes.y >> 4 & EACH_BYTE(15u);
#else
    for (int i = 0; i < 4; i++)
        a[i] = codes >> 2 * i & EACH_BYTE(3u);
#endif
#if HIGH == 2
    const unsigned upper = high[at];
    for (int i = 0; i < 4; i++)
        a[i] |= (upper >> 2 * i & EACH_BYTE(3u)) << LOW;
#elif HIGH == 1
    const unsigned packed = high[at], upper = (packed & 0x0f0fu) | (packed & 0xf0f0u) << 12;
    for (int i = 0; i < 4; i++)
        a[i] |= (upper >> i & EACH_BYTE(1u)) << LOW;
#endif
#if OFFSET
    for (int i = 0; i < 4; i++) /* no borrow crosses a byte */
        a[i] = ((a[i] | EACH_BYTE(0x80u)) - EACH_BYTE(OFFSET)) ^ EACH_BYTE(0x80u);
#endif
}

/* Whole factors, and minima, of four parts of a block, a byte each, for rows g and g + 8. */
struct Factors {
    unsigned factors[2], minima[2];
};

static __device__ __forceinline__ Factors read_factors(const unsigned *subs, size_t block, int word,
                                                       int g)
{
    Factors read = {};
#if SUB
    const int n_words = BLOCK / SUB / 4, sets = MINIMA && !NIBBLES ? 2 : 1;
    for (int half = 0; half < 2; half++) {
        const size_t at = (block * sets * 16 + g + 8 * half) * n_words + word;
        read.factors[half] = subs[at];
        if (sets == 2)
            read.minima[half] = subs[at + 16 * n_words];
    }
#endif
    return read;
}

/* Takes in the product of a step: each part's, times its factor. */
static __device__ __forceinline__ void add_product(int (&sum)[4], const Factors &of, int step,
                                                   const unsigned (&a)[4], unsigned b0, unsigned b1)
{
#if SUB == 0 /* a block of one step */
    multiply(sum, a, b0, b1);
#else
    for (int part = 0; part < 32 / SUB; part++) {
        int product[4]; /* half of the columns alone: the other half times zeros */
        multiply(product, a, SUB == 32 || part == 0 ? b0 : 0, SUB == 32 || part == 1 ? b1 : 0);
        const int shift = (step * (32 / SUB) + part) * 8;
        for (int i = 0; i < 4; i++) {
            const unsigned word = of.factors[i >> 1];
            sum[i] += product[i] *
                      (NIBBLES ? (int)(word >> shift & 15) : (int)(word << (24 - shift)) >> 24);
        }
    }
#endif
}

/* Takes in the minima of a step, times the sums of its codes: `sums` are of 16 and 16 columns. */
static __device__ __forceinline__ void add_minima(int (&sum)[4], const Factors &of, int step,
                                                  const unsigned (&sums)[2])
{
    for (int i = 0; i < 4; i++) {
        const int first = (short)(sums[i & 1] & 0xffffu), second = (int)sums[i & 1] >> 16;
#if SUB == 0
        sum[i] -= first + second;
#elif SUB == 32
        sum[i] += (int)(of.minima[i >> 1] >> step * 8 & 255) * (first + second);
#else
        const unsigned pair = of.factors[i >> 1] >> step * 16;
        sum[i] += (int)(pair >> 4 & 15) * first + (int)(pair >> 12 & 15) * second;
#endif
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, ROW_TILES == 1 ? 2 : 1)
    matmul(const Low *__restrict__ low, const High *__restrict__ high,
           const unsigned *__restrict__ subs, const Scale *__restrict__ scales,
           const unsigned *__restrict__ x, const float *__restrict__ x_scales,
           const unsigned *__restrict__ x_sums, const float *__restrict__ bias,
           const int *__restrict__ matrices, const int *__restrict__ members, float *__restrict__ y,
           int n_rows, int n_blocks, int n_slots, int n_ranks)
{
    __shared__ float partial[WARPS][16 * WIDTH];
    const int matrix = matrix_of_tile(matrices);
    if (matrix < 0)
        return;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int g = lane >> 2, q = lane & 3;
    const int n_tiles = (n_rows + 15) / 16;
    const int begin = (int)((long long)n_blocks * warp / WARPS);
    const int end = (int)((long long)n_blocks * (warp + 1) / WARPS);

    /* This lane feeds row g of x to a product, and receives slots 2q and 2q + 1 from it. */
    int feeds[TOKEN_TILES], takes[TOKEN_TILES][2];
#pragma unroll
    for (int t = 0; t < TOKEN_TILES; t++) {
        const int fed = slot_of(members, n_slots, WIDTH, 8 * t + g);
        feeds[t] = fed < 0 ? -1 : fed / n_ranks;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int taken = slot_of(members, n_slots, WIDTH, 8 * t + 2 * q + i);
            takes[t][i] = taken < 0 ? -1 : taken / n_ranks;
        }
    }

    const long long row_steps = (long long)n_blocks * STEPS;
    float sum[ROW_TILES][TOKEN_TILES][4] = {};
#pragma unroll(BLOCK == 256 || ROW_TILES > 1 ? 1 : MINIMA ? 2 : 4)
    for (int block = begin; block < end; block++) {
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++) {
            const int row_tile = blockIdx.x * ROW_TILES + r;
            if (row_tile >= n_tiles)
                break;
            const size_t at = ((size_t)matrix * n_tiles + row_tile) * n_blocks + block;
            int whole[TOKEN_TILES][4] = {}, least[TOKEN_TILES][4] = {};
#pragma unroll(ROW_TILES == 1 ? STEPS : 1)
            for (int word = 0; word < STEPS / STEPS_OF_WORD; word++) {
                const Factors factors = read_factors(subs, at, word, g);
#pragma unroll(ROW_TILES == 1 ? STEPS_OF_WORD : 1)
                for (int step = 0; step < STEPS_OF_WORD; step++) {
                    const int number = word * STEPS_OF_WORD + step;
                    const size_t column = (size_t)block * STEPS + number; /* of 32 */
                    unsigned a[4];
                    unpack(a, low, high, (at * STEPS + number) * 32 + lane);
#pragma unroll
                    for (int t = 0; t < TOKEN_TILES; t++) {
                        const unsigned *in = x + (feeds[t] * row_steps + column) * 8 + q;
                        const bool fed = feeds[t] >= 0;
                        add_product(whole[t], factors, step, a, fed ? in[0] : 0, fed ? in[4] : 0);
                        if (MINIMA) {
                            unsigned sums[2];
                            for (int i = 0; i < 2; i++)
                                sums[i] =
                                    takes[t][i] < 0 ? 0 : x_sums[takes[t][i] * row_steps + column];
                            add_minima(least[t], factors, step, sums);
                        }
                    }
                }
            }
            const Scale *own = scales + at * (MINIMA ? 32 : 16) + g;
#pragma unroll
            for (int t = 0; t < TOKEN_TILES; t++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int taken = takes[t][i & 1], half = i >> 1 << 3;
                    const float x_scale =
                        taken < 0 ? 0.0f : x_scales[(long long)taken * n_blocks + block];
                    float &to = sum[r][t][i];
                    to = fmaf((float)whole[t][i], scale_of(own[half]) * x_scale, to);
                    if (MINIMA)
                        to = fmaf(-(float)least[t][i], scale_of(own[16 + half]) * x_scale, to);
                }
        }
    }

#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
#pragma unroll
        for (int t = 0; t < TOKEN_TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int row = g + (i >> 1) * 8, token = 8 * t + 2 * q + (i & 1);
                partial[warp][token * 16 + row] = sum[r][t][i];
            }
        __syncthreads();
        for (int i = threadIdx.x; i < 16 * WIDTH; i += 32 * WARPS) {
            const int row = (blockIdx.x * ROW_TILES + r) * 16 + (i & 15);
            const int slot = slot_of(members, n_slots, WIDTH, i >> 4);
            if (row < n_rows && slot >= 0) {
                float total = partial[0][i];
                for (int other = 1; other < WARPS; other++)
                    total += partial[other][i];
                y[(size_t)slot * n_rows + row] =
                    bias ? total + bias[(size_t)matrix * n_rows + row] : total;
            }
        }
        __syncthreads();
    }
}
