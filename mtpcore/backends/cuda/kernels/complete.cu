/* Sets a condition if all of these drafts were made. Grid: 1. Block: 256.
 */
#include "condition.cuh"

#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS)
    complete(const int *__restrict__ drafts, const int *__restrict__ wanted, int n, int stride,
             unsigned long long condition)
{
    __shared__ int all;
    if (threadIdx.x == 0)
        all = 1;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += THREADS)
        if (drafts[(size_t)wanted[i] * stride] < 0)
            all = 0; /* all that write, write the same */
    __syncthreads();
    if (threadIdx.x == 0)
        cudaGraphSetConditional(condition, (unsigned)all);
}
