/* The mass of all tokens of each chooser's row: whole numbers, which have the same sum in every order.
 * `tops` are the rows' largest logits; `totals` are zero before.
 * Grid: (rows, parts). Block: 256.
 */
#include "cut.cuh"
#include "noise.cuh"

#define THREADS 256
#define PER_THREAD 8

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    weigh(const float *__restrict__ logits, const Chooser *__restrict__ choosers,
          const int *__restrict__ tops, unsigned long long *__restrict__ totals, int n_vocab)
{
    __shared__ unsigned long long sum;
    const float *row = logits + (size_t)choosers[blockIdx.x].row * n_vocab;
    const float max = row[tops[blockIdx.x]];
    if (threadIdx.x == 0)
        sum = 0;
    __syncthreads();
    unsigned long long own = 0;
    for (int i = 0; i < PER_THREAD; i++) {
        const int at = (blockIdx.y * PER_THREAD + i) * THREADS + threadIdx.x;
        if (at < n_vocab && row[at] > __uint_as_float(0xff800000u))
            own += mass_of(row[at], max);
    }
    atomicAdd(&sum, own);
    __syncthreads();
    if (threadIdx.x == 0)
        atomicAdd(&totals[blockIdx.x], sum);
}
