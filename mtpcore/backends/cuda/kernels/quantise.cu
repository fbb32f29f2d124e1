/* Blocks of BLOCK (32 or 256) activations as int8 with one scale, as quantise.cuh says: of x, or where
 * GATED of kind(x) (up + offset), as functions.cuh has it. One warp for a
 * block. Grid: (blocks of all rows / 8 rounded up); there may be more rows than CTAs along y. Block: 256.
 */
#include "early.cuh"
#include "functions.cuh"
#include "quantise.cuh"

#define THREADS 256
#define OF_LANE (BLOCK / 32)

extern "C" __global__ void __launch_bounds__(THREADS)
    quantise(const float *__restrict__ x, const float *__restrict__ up,
             signed char *__restrict__ codes, float *__restrict__ scales, short *__restrict__ sums,
             unsigned n_blocks, int kind, float limit, float offset)
{
    let_next_begin();
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const size_t at = (size_t)blockIdx.x * (THREADS / 32) + warp;
    if (at >= n_blocks) /* a whole warp */
        return;
    const size_t own = at * BLOCK + lane * OF_LANE;

    float value[OF_LANE];
#pragma unroll
    for (int i = 0; i < OF_LANE; i++)
        value[i] = GATED ? gated(kind, x[own + i], up[own + i], limit, offset) : x[own + i];
    store_block(value, at, codes, scales, sums);
}
