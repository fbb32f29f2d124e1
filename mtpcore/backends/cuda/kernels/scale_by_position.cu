/* y = x times 1 + beta log(1 + floor((position + offset) / n)), by the first axis of positions, as
 * _ext/c/ops/factors.inc has it: the logarithm is the sampler's, and the factor is rounded to float.
 * Grid: rows. Block: 256.
 */
#include "noise.cuh"

#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS)
    scale_by_position(const float *__restrict__ x, const int *__restrict__ positions,
                      float *__restrict__ y, int width, int n_axes, int n, int offset, float beta)
{
    const size_t row = blockIdx.x;
    const long long position = (long long)positions[row * n_axes] + offset;
    const long long part = position < 0 ? 0 : position / n;
    const float factor = (float)(1.0 + (double)beta * logarithm(1.0 + (double)part));
    for (int i = threadIdx.x; i < width; i += THREADS)
        y[row * width + i] = factor * x[row * width + i];
}
