/* y = f(a, b), each value by itself: the same operations, and bits, as on the CPU.
 *
 * OPERATION is ADD, MUL, SCALE (by `number`), CLAMP (to it), ACTIVATION (of `kind`) or GATED, with
 * the limit `number`, as functions.cuh has it. Where `each` is not 0, so many values in a row share
 * one of b; with `ids`, the one that these choose for them. Where `period` is not 0, b repeats after
 * as many: weights of a row.
 * Grid: values / 256 rounded up. Block: 256.
 */
#include "functions.cuh"

#define THREADS 256

enum { ADD, MUL, SCALE, CLAMP, ACTIVATION, GATED };

static __device__ __forceinline__ float computed(float a, float b, int kind, float number,
                                                 float offset)
{
    switch (OPERATION) {
    case ADD:
        return a + b;
    case MUL:
        return a * b;
    case SCALE:
        return a * number;
    case CLAMP:
        a = number < a ? number : a;
        return a < -number ? -number : a;
    case ACTIVATION:
        return activation(kind, a);
    default:
        return gated(kind, a, b, number, offset);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    elementwise(const float *__restrict__ a, const float *__restrict__ b, float *__restrict__ y,
                long long n, const int *__restrict__ ids, int period, int each, int kind,
                float number, float offset)
{
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n)
        return;
    const long long part = each ? i / each : i, at = period ? part % period : part;
    y[i] = computed(a[i], b ? b[ids ? ids[at] : at] : 0.0f, kind, number, offset);
}
