/* Rows, normalised as normalise.cuh says; less their mean where CENTRED, and only there with a bias.
 *
 * One CTA for one row, so a row's bits depend on that row alone. Where BLOCK is not 0, blocks of as many
 * values become codes (quantise.cuh), and y is null where nobody reads it. Rows are x_pitch and y_pitch
 * apart. Grid: rows. Block: 256.
 *
 * Of so little work most is waiting: all values of a row are asked for at once, and its weights before
 * it is there.
 */
#include "early.cuh"
#include "quantise.cuh"
#include "normalise.cuh"

extern "C" __global__ void __launch_bounds__(256, 2)
    normalise(const float *x, const float *__restrict__ weight, const float *__restrict__ bias,
              float *__restrict__ y, signed char *__restrict__ codes, float *__restrict__ scales,
              short *__restrict__ sums, int width, float n, float eps, int x_begin, int x_pitch,
              int y_begin, int y_pitch)
{
    __shared__ float partial[2 * ALL_WARPS], of_warps[ALL_WARPS][BLOCK == 32 ? 32 * EACH : 1];
    const Norm norm = {weight, bias, codes, scales, sums, width, n, eps};
    x += x_begin + (size_t)blockIdx.x * x_pitch;
    if (y)
        y += y_begin + (size_t)blockIdx.x * y_pitch;
    normalise_row<2>(norm, CENTRED, BLOCK, x, y, blockIdx.x, partial, of_warps[threadIdx.x >> 5],
                     [] {
                         wait_for_launches();
                         let_next_begin();
                     });
}
