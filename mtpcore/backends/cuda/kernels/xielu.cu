/* y = alpha_p x^2 + beta x where x > 0, else alpha_n (exp(min(x, eps)) - 1 - x) + beta x: the same
 * operations, and bits, as on the CPU.
 * Grid: values / 256 rounded up. Block: 256.
 */
#include "functions.cuh"

#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS)
    xielu(const float *__restrict__ x, float *__restrict__ y, long long n, float alpha_p,
          float alpha_n, float beta, float eps)
{
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n)
        return;
    const float a = x[i], least = eps < a ? eps : a;
    y[i] = a > 0.0f ? fmaf(alpha_p, a, beta) * a
                    : fmaf(alpha_n, exponential_less_one(least) - a, beta * a);
}
