/* y = what a head attends to: the sums of its ranges (attention.cu), taken together in order, and
 * divided by the sum of weights. A sink is one more score, of a value of zeros.
 * Grid: (heads, rows). Block: 256.
 */
#include "functions.cuh"
#include "visible.cuh"

#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS)
    merge(const float *__restrict__ sums, const Visible *__restrict__ visible_of_rows,
          const float *__restrict__ sinks, float *__restrict__ y, int first_row, int n_ranges,
          int n_heads, int v_width)
{
    const int head = blockIdx.x, row = blockIdx.y, t = first_row + row;
    const Visible visible = visible_of_rows[t];
    const int n = visible.begin < visible.end ? (visible.end - 1) / RANGE - visible.begin / RANGE + 1 : 0;
    const float *range = sums + ((size_t)row * n_heads + head) * n_ranges * (v_width + 2);
    for (int d = threadIdx.x; d < v_width; d += THREADS) {
        float top = __uint_as_float(0xff800000u), total = 0.0f, out = 0.0f;
        for (int i = 0; i < n; i++) {
            const float *own = range + (size_t)i * (v_width + 2);
            const float top_of_own = own[v_width], total_of_own = own[v_width + 1];
            if (i == 0) {
                top = top_of_own, total = total_of_own, out = own[d];
                continue;
            }
            const float highest = top_of_own > top ? top_of_own : top;
            const float before = exponential(top - highest);
            const float now = exponential(top_of_own - highest);
            total = total * before + total_of_own * now;
            out = fmaf(own[d], now, out * before);
            top = highest;
        }
        if (sinks) {
            const float highest = sinks[head] > top ? sinks[head] : top;
            const float factor = exponential(top - highest);
            total = total * factor + exponential(sinks[head] - highest);
            out *= factor;
        }
        y[((size_t)t * n_heads + head) * v_width + d] = __fdiv_rn(out, total);
    }
}
