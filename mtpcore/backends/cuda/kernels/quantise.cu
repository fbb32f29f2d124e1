/* Blocks of BLOCK (32 or 256) activations as int8 with one scale (quantise.cuh), and `sums` of 16
 * codes each. One warp for a block. Grid: (blocks of a row / 8 rounded up, rows). Block: 256.
 */
#include "quantise.cuh"

#define THREADS 256
#define OF_LANE (BLOCK / 32)

extern "C" __global__ void __launch_bounds__(THREADS)
    quantise(const float *__restrict__ x, signed char *__restrict__ codes,
             float *__restrict__ scales, short *__restrict__ sums, int n_blocks)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int block = blockIdx.x * (THREADS / 32) + warp;
    if (block >= n_blocks) /* a whole warp */
        return;
    const size_t at = (size_t)blockIdx.y * n_blocks + block;
    const size_t own = at * BLOCK + lane * OF_LANE;

    float value[OF_LANE];
#pragma unroll
    for (int i = 0; i < OF_LANE; i++)
        value[i] = x[own + i];
    int code[OF_LANE], sum = 0;
    const float scale = quantise_block(value, code);
#pragma unroll
    for (int i = 0; i < OF_LANE; i++) {
        codes[own + i] = (signed char)code[i];
        sum += code[i];
    }
    for (int step = 8 / OF_LANE; step > 0; step >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane * OF_LANE % 16 == 0)
        sums[own / 16] = (short)sum;
    if (lane == 0)
        scales[at] = scale;
}
