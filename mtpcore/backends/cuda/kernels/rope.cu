/* Turn pair i of each head by angle = positions[axes[i]] * frequencies[i] / factors[i]: (a, b)
 * becomes (a cos - b sin, a sin + b cos), cosine and sine times `magnitude`; the rest stays.
 *
 * Angles, sines and cosines are double, and rounded to float in the end. Pairs are (i, i + n_pairs),
 * or (2i, 2i + 1) where PAIRS. A thread turns its pairs in all heads. Grid: rows. Block: 256.
 */
#include "rope.cuh"

#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS)
    rope(const float *__restrict__ x, const int *__restrict__ positions,
         const double *__restrict__ frequencies, const int *__restrict__ axes,
         const float *__restrict__ factors, float *__restrict__ y, int n_pairs, int n_axes,
         int n_heads, int width, double magnitude)
{
    const size_t row = blockIdx.x;
    x += row * n_heads * width;
    y += row * n_heads * width;
    for (int i = threadIdx.x; i < n_pairs; i += THREADS) {
        const double frequency = factors ? frequencies[i] / (double)factors[i] : frequencies[i];
        float cos, sin;
        turn(positions[row * n_axes + axes[i]] * frequency, magnitude, &cos, &sin);
        const int first = PAIRS ? 2 * i : i, second = PAIRS ? 2 * i + 1 : n_pairs + i;
        for (int at = 0; at < n_heads * width; at += width) {
            const float a = x[at + first], b = x[at + second];
            y[at + first] = fmaf(a, cos, (0.0f - b) * sin);
            y[at + second] = fmaf(a, sin, b * cos);
        }
    }
    const int rest = width - 2 * n_pairs;
    for (int i = threadIdx.x; i < n_heads * rest; i += THREADS) {
        const int at = i / rest * width + 2 * n_pairs + i % rest;
        y[at] = x[at];
    }
}
