/* Rotate pair i of each head by angle = positions[axes[i]] * frequencies[i] / factors[i]: (a, b)
 * becomes (a cos - b sin, a sin + b cos), cosine and sine times `magnitude`; the rest stays.
 *
 * Angles, sines and cosines are double, and rounded to float in the end. Pairs are (i, i + n_pairs),
 * or (2i, 2i + 1) where PAIRS. A thread rotates its pairs in all heads, which are x_pitch and y_pitch
 * apart.
 * Grid: rows. Block: 256.
 */
#include "rope.cuh"

#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS)
    rope(const float *__restrict__ x, const int *__restrict__ positions,
         const double *__restrict__ frequencies, const int *__restrict__ axes,
         const float *__restrict__ factors, float *__restrict__ y, int n_pairs, int n_axes,
         int n_heads, int width, int x_begin, int x_pitch, int y_begin, int y_pitch,
         double magnitude)
{
    const size_t row = blockIdx.x;
    x += x_begin + row * n_heads * x_pitch;
    y += y_begin + row * n_heads * y_pitch;
    for (int i = threadIdx.x; i < n_pairs; i += THREADS) {
        const double frequency = factors ? frequencies[i] / (double)factors[i] : frequencies[i];
        float cos, sin;
        cos_sin_of(positions[row * n_axes + axes[i]] * frequency, magnitude, &cos, &sin);
        const int first = PAIRS ? 2 * i : i, second = PAIRS ? 2 * i + 1 : n_pairs + i;
        for (int head = 0; head < n_heads; head++) {
            const float a = x[head * x_pitch + first], b = x[head * x_pitch + second];
            y[head * y_pitch + first] = fmaf(a, cos, (0.0f - b) * sin);
            y[head * y_pitch + second] = fmaf(a, sin, b * cos);
        }
    }
    const int rest = width - 2 * n_pairs;
    for (int i = threadIdx.x; i < n_heads * rest; i += THREADS) {
        const int head = i / rest, at = 2 * n_pairs + i % rest;
        y[head * y_pitch + at] = x[head * x_pitch + at];
    }
}
