/* y = w c / sqrt(sum(c^2) / n + eps) + bias, where c is x, or x less its mean where CENTRED (and only
 * there is a bias). A null weight stands for ones, a null bias for nothing to add.
 *
 * One CTA for one row, so a row's bits depend on that row alone. Of a sum every thread adds its own
 * columns, eight of every 2048, in ascending order, then a fixed tree adds the threads: lanes 16, 8,
 * 4, 2, 1 apart, then the warps in order. Where BLOCK is not 0, blocks of as many values become codes,
 * too (quantise.cuh), and y is not written where it is null. Grid: rows. Block: 256.
 *
 * Of so little work most is waiting: all values of a row are asked for at once, and its weights before
 * it is there.
 */
#include "early.cuh"
#include "quantise.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)
#define EACH 8 /* columns of a thread in a piece of a row */
#define OF_PIECE (THREADS * EACH)
#define AT_ONCE 2 /* pieces that are held */

static __device__ __forceinline__ float total_of(float sum, float (&partial)[WARPS])
{
    for (int step = 16; step > 0; step >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if ((threadIdx.x & 31) == 0)
        partial[threadIdx.x >> 5] = sum;
    __syncthreads();
    float total = 0.0f;
    for (int i = 0; i < WARPS; i++)
        total += partial[i];
    return total;
}

/* Asks for what this thread has of pieces `first`, first + 1, ...; `missing` behind the row's end. */
static __device__ __forceinline__ void load(float (&into)[AT_ONCE][EACH], const float *row,
                                            int first, int width, float missing)
{
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++) {
        const int at = (first + j) * OF_PIECE + threadIdx.x * EACH;
        if (width % 4 == 0 && at + EACH <= width) {
            load_eight(into[j], row + at);
        } else {
#pragma unroll
            for (int i = 0; i < EACH; i++)
                into[j][i] = at + i < width ? row[at + i] : missing;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    normalise(const float *x, const float *__restrict__ weight, const float *__restrict__ bias,
              float *__restrict__ y, signed char *__restrict__ codes, float *__restrict__ scales,
              short *__restrict__ sums, int width, float n, float eps)
{
    __shared__ float of_values[WARPS], of_squares[WARPS];
    const size_t begin = (size_t)blockIdx.x * width;
    const int n_pieces = (width + OF_PIECE - 1) / OF_PIECE;
    float weights[AT_ONCE][EACH], values[AT_ONCE][EACH];
    const auto load_weights = [&](int first) {
        if (weight)
            load(weights, weight, first, width, 1.0f);
    };
    load_weights(0);
    wait_for_launches();
    let_next_begin();
    load(values, x + begin, 0, width, 0.0f);

    /* Calls take(piece, its number among those held) for all pieces, with their values at hand. */
    const auto for_pieces = [&](const auto &take) {
        for (int first = 0; first < n_pieces; first += AT_ONCE) {
            if (n_pieces > AT_ONCE)
                load(values, x + begin, first, width, 0.0f);
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
                take(first + j, j);
        }
    };
    float mean = 0.0f;
    if (CENTRED) {
        for_pieces([&](int, int j) {
#pragma unroll
            for (int i = 0; i < EACH; i++)
                mean += values[j][i];
        });
        mean = __fdiv_rn(total_of(mean, of_values), (float)width);
    }
    float squares = 0.0f;
    for_pieces([&](int piece, int j) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const bool is_behind = piece * OF_PIECE + (int)threadIdx.x * EACH + i >= width;
            const float centred = CENTRED && is_behind ? 0.0f : values[j][i] - mean;
            squares = fmaf(centred, centred, squares);
        }
    });
    squares = total_of(squares, of_squares);

    const float factor = __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(squares, n) + eps));
    for_pieces([&](int piece, int j) {
        const int at = piece * OF_PIECE + threadIdx.x * EACH;
        if (j == 0 && n_pieces > AT_ONCE)
            load_weights(piece);
        float made[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            made[i] = (values[j][i] - mean) * factor;
            if (weight)
                made[i] *= weights[j][i];
            if (CENTRED && bias && at + i < width)
                made[i] += bias[at + i];
            if (y && at + i < width)
                y[begin + at + i] = made[i];
        }
#if BLOCK == 256
        const int block = at / BLOCK, n_blocks = width / BLOCK;
        if (block < n_blocks) /* a whole warp */
            store_block(made, (size_t)blockIdx.x * n_blocks + block, codes, scales, sums);
#elif BLOCK == 32
        __shared__ float of_warps[WARPS][32 * EACH];
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n_blocks = width / BLOCK;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            of_warps[warp][lane * EACH + i] = made[i];
        __syncwarp();
        for (int i = 0; i < EACH; i++) {
            const int block = (piece * WARPS + warp) * EACH + i;
            if (block >= n_blocks) /* a whole warp */
                break;
            const float own[1] = {of_warps[warp][i * 32 + lane]};
            store_block(own, (size_t)blockIdx.x * n_blocks + block, codes, scales, sums);
        }
        __syncwarp(); /* all lanes have read */
#endif
    });
}
