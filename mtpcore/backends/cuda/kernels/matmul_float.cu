/* y[t][r] = sum_k w[r][k] x[t][k] + bias[r] in floating point (floats.cuh). */
#include "early.cuh"
#include "float16.cuh"
#include "lanes.cuh"
#include "slots.cuh"
#include "floats.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    matmul_float(const Four *__restrict__ weights, const float *x, const float *__restrict__ bias,
                 const int *matrices, const int *members, float *__restrict__ y, int n_rows,
                 int n_cols, int n_slots, int n_ranks, int from_tile)
{
    multiply_floats(weights, x, bias, matrices, members, y, n_rows, n_cols, n_slots, n_ranks,
                    from_tile);
}
