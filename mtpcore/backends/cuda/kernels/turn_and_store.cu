/* Turn a row's queries and keys by its positions, as rope.cu does, and store keys and values, as
 * remember.cu does; all at once, with the same bits. Turned keys are nowhere but in memory.
 *
 * CTAs of a row share its entries; each makes the cosines and sines of all pairs, once for all heads.
 * v may be null. Grid: (rows, CTAs of a row). Block: 256.
 */
#include "early.cuh"
#include "float16.cuh"
#include "quantise.cuh"
#include "rope.cuh"
#include "visible.cuh"
#include "stored.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)
#define MOST_PAIRS 512

struct Turns {
    float cosines[MOST_PAIRS], sines[MOST_PAIRS];
};

/* Entry d of a head that is turned. */
static __device__ __forceinline__ float turned(const Turns &turns, const float *head, int d,
                                               int n_pairs)
{
    if (d >= 2 * n_pairs)
        return head[d];
    const int pair = PAIRS ? d / 2 : d % n_pairs;
    const bool is_second = PAIRS ? d & 1 : d >= n_pairs;
    const float a = head[PAIRS ? 2 * pair : pair], b = head[PAIRS ? 2 * pair + 1 : n_pairs + pair];
    const float cos = turns.cosines[pair], sin = turns.sines[pair];
    return is_second ? fmaf(a, sin, b * cos) : fmaf(a, cos, (0.0f - b) * sin);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    turn_and_store(const float *q, const float *k, const float *v, const int *positions,
                   const double *__restrict__ frequencies, const int *__restrict__ axes,
                   const float *__restrict__ factors, float *__restrict__ turned_q, const int *seqs,
                   const int *places, const int *tables, char *memory, long long v_begin,
                   long long pitch, int n_ctas, int n_entries, int n_pairs, int n_axes, int n_heads,
                   int n_key_heads, int k_width, int v_width, double magnitude)
{
    __shared__ Turns turns;
    const size_t t = blockIdx.x;
    const int cta = blockIdx.y;
    wait_for_launches();
    let_next_begin();
    char *rows = memory + slot_of_place(tables + (size_t)seqs[t] * n_entries, places[t]) * pitch;
#pragma unroll 1
    for (int i = threadIdx.x; i < n_pairs; i += THREADS) {
        const double frequency = factors ? frequencies[i] / (double)factors[i] : frequencies[i];
        turn(positions[t * n_axes + axes[i]] * frequency, magnitude, &turns.cosines[i],
             &turns.sines[i]);
    }
    __syncthreads();
    q += t * n_heads * k_width;
#pragma unroll 2
    for (int i = cta * THREADS + threadIdx.x; i < n_heads * k_width; i += n_ctas * THREADS)
        turned_q[t * n_heads * k_width + i] =
            turned(turns, q + i / k_width * k_width, i % k_width, n_pairs);

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
            value[i] = d >= width ? 0.0f : is_key ? turned(turns, from, d, n_pairs) : from[d];
        }
        store_part(is_key ? rows : rows + v_begin, n_key_heads, width, head, part, value);
    }
}
