/* Store a row's key, which is a normalised row and after it a rotated one, and rotate the last parts of
 * queries: what normalise.cu, rope.cu and remember.cu do with latent attention, all at once, with the
 * same bits.
 *
 * CTAs of a row share its queries; each makes the cosines and sines of all pairs, and the last one
 * stores the key. Of that `joined` has the normalised part, and memory all. Rows, or heads, of an array
 * begin at a value of its memory, and are so many apart. Grid: (rows, CTAs of a row). Block: 256.
 */
#include "early.cuh"
#include "float16.cuh"
#include "quantise.cuh"
#include "normalise.cuh"
#include "rope.cuh"
#include "rotated.cuh"
#include "visible.cuh"
#include "stored.cuh"
#include "join.cuh"

#define THREADS 256
#define MOST_PAIRS 512

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    join_and_store(const float *q, const float *latent, const float *key, const int *positions,
                   const double *__restrict__ frequencies, const int *__restrict__ axes,
                   const float *__restrict__ factors, const float *__restrict__ weight,
                   float *rotated_q, float *joined, const int *seqs, const int *places,
                   const int *tables, char *memory, long long pitch, int n_ctas, int n_entries,
                   int n_pairs, int n_axes, int n_heads, int latent_width, int key_width,
                   int q_begin, int q_apart, int latent_begin, int latent_apart, int key_begin,
                   int key_apart, int rotated_begin, int rotated_apart, int joined_begin,
                   int joined_apart, float eps, double magnitude)
{
    __shared__ float cosines[MOST_PAIRS], sines[MOST_PAIRS], partial[2 * ALL_WARPS];
    const size_t t = blockIdx.x;
    const int cta = blockIdx.y;
    wait_for_launches();
    let_next_begin();
#pragma unroll 1
    for (int i = threadIdx.x; i < n_pairs; i += THREADS) {
        const double frequency = factors ? frequencies[i] / (double)factors[i] : frequencies[i];
        cos_sin_of(positions[t * n_axes + axes[i]] * frequency, magnitude, &cosines[i], &sines[i]);
    }
    __syncthreads();
    q += q_begin + t * n_heads * q_apart;
    rotated_q += rotated_begin + t * n_heads * rotated_apart;
#pragma unroll 2
    for (int i = cta * THREADS + threadIdx.x; i < n_heads * key_width; i += n_ctas * THREADS) {
        const int head = i / key_width, d = i % key_width;
        rotated_q[head * rotated_apart + d] =
            rotated(cosines, sines, PAIRS, q + head * q_apart, d, n_pairs);
    }
    if (cta != n_ctas - 1)
        return;

    const Norm norm = {
        weight, nullptr, nullptr, nullptr, nullptr, latent_width, (float)latent_width, eps};
    latent += latent_begin + t * latent_apart;
    key += key_begin + t * key_apart;
    joined += joined_begin + t * joined_apart;
    char *rows = memory + slot_of_place(tables + (size_t)seqs[t] * n_entries, places[t]) * pitch;
    store_joined(norm, latent, key, joined, t, cosines, sines, PAIRS, n_pairs, TYPE, rows,
                 key_width, partial);
}
