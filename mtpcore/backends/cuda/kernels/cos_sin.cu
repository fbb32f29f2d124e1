/* The cosines of a row's pairs, then their sines, as rope.cu rotates by them: once for all heads of all
 * layers. Grid: rows. Block: 256.
 */
#include "early.cuh"
#include "rope.cuh"

extern "C" __global__ void __launch_bounds__(256)
    cos_sin(const int *positions, const double *__restrict__ frequencies,
            const int *__restrict__ axes, const float *__restrict__ factors, float *__restrict__ to,
            int n_pairs, int n_axes, double magnitude)
{
    wait_for_launches();
    let_next_begin();
    to += (size_t)blockIdx.x * 2 * n_pairs;
    for (int i = threadIdx.x; i < n_pairs; i += 256) {
        const double frequency = factors ? frequencies[i] / (double)factors[i] : frequencies[i];
        cos_sin_of(positions[(size_t)blockIdx.x * n_axes + axes[i]] * frequency, magnitude, &to[i],
                   &to[n_pairs + i]);
    }
}
