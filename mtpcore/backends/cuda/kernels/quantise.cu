/* Blocks of BLOCK (32 or 256) activations as int8 with one scale, as quantise.cuh says: of x, or where
 * GATED of kind(x) (up + offset), as functions.cuh has it. Rows of x have n_of_row blocks and are x_pitch
 * apart. One warp for a block. Grid: (blocks of all rows / 8 rounded up); there may be more rows than CTAs along y. Block: 256.
 */
#include "early.cuh"
#include "functions.cuh"
#include "quantise.cuh"

#define THREADS 256
#define OF_LANE (BLOCK / 32)

/* What a lane has of an array. */
static __device__ __forceinline__ void load(float (&into)[OF_LANE], const float *own)
{
#if BLOCK == 32
    into[0] = own[0];
#else
    load_eight(into, own);
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    quantise(const float *x, const float *up, signed char *__restrict__ codes,
             float *__restrict__ scales, short *__restrict__ sums, unsigned n_blocks, int kind,
             float limit, float offset, int x_begin, int x_pitch, unsigned n_of_row)
{
    wait_for_launches();
    let_next_begin();
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const unsigned at = blockIdx.x * (THREADS / 32) + warp;
    if (at >= n_blocks) /* a whole warp */
        return;
    const size_t of_x = (size_t)(at / n_of_row) * x_pitch + at % n_of_row * BLOCK + lane * OF_LANE;

    float value[OF_LANE];
    load(value, x + x_begin + of_x);
#if GATED
    float others[OF_LANE];
    load(others, up + (size_t)at * BLOCK + lane * OF_LANE);
#pragma unroll
    for (int i = 0; i < OF_LANE; i++)
        value[i] = gated(kind, value[i], others[i], limit, offset);
#endif
    store_block(value, at, codes, scales, sums);
}
