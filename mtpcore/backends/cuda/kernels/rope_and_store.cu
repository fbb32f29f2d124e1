/* Rotate a row's queries and keys by its positions, as rope.cu does, and store keys and values, as
 * remember.cu does; all at once, with the same bits. Rotated keys are nowhere but in memory.
 *
 * CTAs of a row share its entries; each makes the cosines and sines of all pairs, once for all heads.
 * v may be null. Grid: (rows, CTAs of a row). Block: 256.
 */
#include "early.cuh"
#include "float16.cuh"
#include "quantise.cuh"
#include "rope.cuh"
#include "rotated.cuh"
#include "visible.cuh"
#include "stored.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)
#define MOST_PAIRS 512

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    rope_and_store(const float *q, const float *k, const float *v, const int *positions,
                   const double *__restrict__ frequencies, const int *__restrict__ axes,
                   const float *__restrict__ factors, float *__restrict__ rotated_q, const int *seqs,
                   const int *places, const int *tables, char *memory, long long v_begin,
                   long long pitch, int n_ctas, int n_entries, int n_pairs, int n_axes, int n_heads,
                   int n_key_heads, int k_width, int v_width, double magnitude)
{
    __shared__ float cosines[MOST_PAIRS], sines[MOST_PAIRS];
    const size_t t = blockIdx.x;
    const int cta = blockIdx.y;
    wait_for_launches();
    let_next_begin();
    char *rows = memory + slot_of_place(tables + (size_t)seqs[t] * n_entries, places[t]) * pitch;
#pragma unroll 1
    for (int i = threadIdx.x; i < n_pairs; i += THREADS) {
        const double frequency = factors ? frequencies[i] / (double)factors[i] : frequencies[i];
        cos_sin_of(positions[t * n_axes + axes[i]] * frequency, magnitude, &cosines[i], &sines[i]);
    }
    __syncthreads();
    q += t * n_heads * k_width;
#pragma unroll 2
    for (int i = cta * THREADS + threadIdx.x; i < n_heads * k_width; i += n_ctas * THREADS)
        rotated_q[t * n_heads * k_width + i] =
            rotated(cosines, sines, PAIRS, q + i / k_width * k_width, i % k_width, n_pairs);

    const int lane = threadIdx.x & 31;
    const int of_keys = n_key_heads * n_scales(k_width);
    const int of_values = v ? n_key_heads * n_scales(v_width) : 0;
    for (int unit = cta * WARPS + (threadIdx.x >> 5); unit < of_keys + of_values;
         unit += n_ctas * WARPS) {
        const bool is_key = unit < of_keys;
        const int width = is_key ? k_width : v_width;
        const int number = is_key ? unit : unit - of_keys;
        const int head = number / n_scales(width), part = number % n_scales(width);
        const float *from = (is_key ? k : v) + (t * n_key_heads + head) * width;
        float value[2];
        for (int i = 0; i < 2; i++) {
            const int d = part * CODES + 2 * lane + i;
            value[i] = d >= width ? 0.0f
                       : is_key   ? rotated(cosines, sines, PAIRS, from, d, n_pairs)
                                  : from[d];
        }
        store_part(TYPE, is_key ? rows : rows + v_begin, n_key_heads, width, head, part, value);
    }
}
