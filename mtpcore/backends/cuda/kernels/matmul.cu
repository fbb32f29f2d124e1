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
 * Up to three matrices of a type may share the rows of x: the CTAs of one come after those of the
 * other. Where there are rows of a `residual`, they are added last.
 *
 * Weights lie as quantised.cuh says, and are fetched before the launch before has ended (early.cuh).
 * Grid: (row tiles / ROW_TILES of each, slots / 8 / TOKEN_TILES rounded up, or tiles of group.cu).
 * Block: 256.
 */
#include "early.cuh"
#include "float16.cuh"
#include "quantised.cuh"
#include "slots.cuh"

#define WARPS 8
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

static __device__ __forceinline__ int n_ctas(int n_rows)
{
    return (n_rows + 16 * ROW_TILES - 1) / (16 * ROW_TILES);
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
           int n_rows, int n_blocks, int n_slots, int n_ranks, const float *__restrict__ residual,
           const Low *__restrict__ low_2, const High *__restrict__ high_2,
           const unsigned *__restrict__ subs_2, const Scale *__restrict__ scales_2,
           const float *__restrict__ bias_2, float *__restrict__ y_2, int n_rows_2,
           const Low *__restrict__ low_3, const High *__restrict__ high_3,
           const unsigned *__restrict__ subs_3, const Scale *__restrict__ scales_3,
           const float *__restrict__ bias_3, float *__restrict__ y_3, int n_rows_3)
{
    __shared__ float partial[WARPS][16 * WIDTH];
    int number = blockIdx.x; /* of the CTAs of its matrix */
    if (number >= n_ctas(n_rows)) {
        number -= n_ctas(n_rows);
        low = low_2, high = high_2, subs = subs_2, scales = scales_2;
        bias = bias_2, y = y_2, n_rows = n_rows_2;
        if (number >= n_ctas(n_rows)) {
            number -= n_ctas(n_rows);
            low = low_3, high = high_3, subs = subs_3, scales = scales_3;
            bias = bias_3, y = y_3, n_rows = n_rows_3;
        }
    }
    if (!matrices) { /* which one it is, launches before have written */
        const size_t of_tile = (size_t)n_blocks * STEPS * 32;
        const int n_own = (n_rows + 15) / 16 - number * ROW_TILES;
        const size_t first = number * ROW_TILES * of_tile;
        const size_t n = of_tile * (n_own < ROW_TILES ? n_own : ROW_TILES);
        prefetch_all(low + first, n * sizeof(Low));
        if (HIGH)
            prefetch_all(high + first, n * sizeof(High));
    }
    wait_for_launches();
    let_next_begin();
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
            const int row_tile = number * ROW_TILES + r;
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
            const int row = (number * ROW_TILES + r) * 16 + (i & 15);
            const int slot = slot_of(members, n_slots, WIDTH, i >> 4);
            if (row < n_rows && slot >= 0) {
                float total = partial[0][i];
                for (int other = 1; other < WARPS; other++)
                    total += partial[other][i];
                if (bias)
                    total += bias[(size_t)matrix * n_rows + row];
                const size_t at = (size_t)slot * n_rows + row;
                y[at] = residual ? total + residual[at] : total;
            }
        }
        __syncthreads();
    }
}
