/* Rows of y become rows of x, as pairs say; those from below 0 stay. Grid: (pairs, width / 256 rounded up). Block: 256.
 */
#include "pair.cuh"

#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS)
    place(const int *__restrict__ x, const Pair *__restrict__ pairs, int *__restrict__ y, int width)
{
    const Pair pair = pairs[blockIdx.x];
    const int i = blockIdx.y * THREADS + threadIdx.x;
    if (i < width && pair.from >= 0)
        y[(size_t)pair.to * width + i] = x[(size_t)pair.from * width + i];
}
