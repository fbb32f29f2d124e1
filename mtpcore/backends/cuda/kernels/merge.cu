/* y = what a head attends to: the sums of its ranges (attention.cu), taken together in order, and
 * divided by the sum of weights. A sink is one more score, of a value of zeros.
 *
 * Where BLOCK is not 0, the row of all heads becomes codes (quantise.cuh), BLOCK values to a warp, and
 * there is no y. Grid: (rows, heads), or (rows, blocks of a row / 8 rounded up). Block: 256.
 */
#include "early.cuh"
#include "functions.cuh"
#include "quantise.cuh"
#include "visible.cuh"

#define THREADS 256
#define AT_ONCE 4 /* ranges that are asked for together */

/* The sums of a head's ranges, which lie one after the other. */
struct Head {
    const float *sums, *sink;
    int n_ranges, v_width;
};

/* Entries d, ..., d + N - 1 of a head. */
template <int N>
static __device__ __forceinline__ void merged(float (&out)[N], const Head &head, int d)
{
    const int v_width = head.v_width;
    float top = __uint_as_float(0xff800000u), total = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++)
        out[i] = 0.0f;
    for (int first = 0; first < head.n_ranges; first += AT_ONCE) {
        float tops[AT_ONCE], totals[AT_ONCE], values[AT_ONCE][N];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) { /* the last one repeats */
            const int range = first + j < head.n_ranges ? first + j : head.n_ranges - 1;
            const float *own = head.sums + (size_t)range * (v_width + 2);
            tops[j] = own[v_width], totals[j] = own[v_width + 1];
#pragma unroll
            for (int i = 0; i < N; i++)
                values[j][i] = own[d + i];
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            if (first + j >= head.n_ranges)
                break;
            if (first + j == 0) {
                top = tops[0], total = totals[0];
#pragma unroll
                for (int i = 0; i < N; i++)
                    out[i] = values[0][i];
                continue;
            }
            const float highest = tops[j] > top ? tops[j] : top;
            const float before = exponential(top - highest), now = exponential(tops[j] - highest);
            total = total * before + totals[j] * now;
#pragma unroll
            for (int i = 0; i < N; i++)
                out[i] = fmaf(values[j][i], now, out[i] * before);
            top = highest;
        }
    }
    if (head.sink) {
        const float sink = *head.sink, highest = sink > top ? sink : top;
        const float factor = exponential(top - highest);
        total = total * factor + exponential(sink - highest);
#pragma unroll
        for (int i = 0; i < N; i++)
            out[i] *= factor;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        out[i] = __fdiv_rn(out[i], total);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    merge(const float *sums, const Visible *visible_of_rows, const float *__restrict__ sinks,
          float *__restrict__ y, signed char *__restrict__ codes, float *__restrict__ scales,
          short *__restrict__ sums_of_codes, int first_row, int n_ranges, int n_heads, int v_width)
{
    wait_for_launches();
    let_next_begin();
    const int row = blockIdx.x, t = first_row + row;
    const Visible visible = visible_of_rows[t];
    const int n_of_row =
        visible.begin < visible.end ? (visible.end - 1) / RANGE - visible.begin / RANGE + 1 : 0;
    const int n = n_of_row < n_ranges ? n_of_row : n_ranges; /* one where they are merged already */
    const auto head_of = [&](int number) {
        const float *of_head = sums + ((size_t)row * n_heads + number) * n_ranges * (v_width + 2);
        return Head{of_head, sinks ? sinks + number : 0, n, v_width};
    };
#if BLOCK
    const int n_blocks = n_heads * v_width / BLOCK;
    const int block = blockIdx.y * (THREADS / 32) + (threadIdx.x >> 5);
    if (block >= n_blocks) /* a whole warp */
        return;
    const int first = block * BLOCK + (threadIdx.x & 31) * (BLOCK / 32);
    float value[BLOCK / 32];
    if (v_width % (BLOCK / 32) == 0) /* all of one head */
        merged(value, head_of(first / v_width), first % v_width);
    else
#pragma unroll 1
        for (int i = 0; i < BLOCK / 32; i++) {
            float own[1];
            merged(own, head_of((first + i) / v_width), (first + i) % v_width);
#pragma unroll /* registers have no index that is made at run time */
            for (int j = 0; j < BLOCK / 32; j++)
                value[j] = i == j ? own[0] : value[j];
        }
    store_block(value, (size_t)t * n_blocks + block, codes, scales, sums_of_codes);
#else
    for (int d = threadIdx.x; d < v_width; d += THREADS) {
        float own[1];
        merged(own, head_of(blockIdx.y), d);
        y[((size_t)t * n_heads + blockIdx.y) * v_width + d] = own[0];
    }
#endif
}
