/* Counts the tokens of a part of a row, and their mass, by the next digit of their keys: of those
 * whose keys begin as far as the last one's is known. `tops` are the rows' largest logits.
 * Grid: (rows, parts). Block: 256.
 */
#include "noise.cuh"
#include "winner.cuh"
#include "cut.cuh"

#define PER_THREAD 8

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    tally(const float *__restrict__ logits, const Chooser *__restrict__ choosers,
          const Cut *__restrict__ cuts, const int *__restrict__ tops, Tally *__restrict__ tallies,
          int n_vocab, int row_bits, int shift)
{
    __shared__ unsigned long long masses[DIGITS];
    __shared__ unsigned counts[DIGITS];
    const Cut cut = cuts[blockIdx.x];
    if (!cut.is_open)
        return;
    const float *row = logits + (size_t)choosers[blockIdx.x].row * n_vocab;
    const float max = row[tops[blockIdx.x]];
    masses[threadIdx.x] = 0;
    counts[threadIdx.x] = 0;
    __syncthreads();
    const int first = blockIdx.y * (THREADS * PER_THREAD) + threadIdx.x;
    for (int i = 0; i < PER_THREAD; i++) {
        const int at = first + i * THREADS;
        if (at >= n_vocab || !(row[at] > __uint_as_float(0xff800000u)))
            continue;
        const unsigned long long key = key_of(row[at], at, row_bits);
        if ((key ^ cut.last) >> shift >> DIGIT)
            continue;
        const int digit = (int)(key >> shift) & (DIGITS - 1);
        atomicAdd(&counts[digit], 1u);
        atomicAdd(&masses[digit], mass_of(row[at], max));
    }
    __syncthreads();
    Tally *own = tallies + (size_t)blockIdx.x * DIGITS + threadIdx.x;
    if (counts[threadIdx.x]) {
        atomicAdd(&own->count, (unsigned long long)counts[threadIdx.x]);
        atomicAdd(&own->mass, masses[threadIdx.x]);
    }
}
