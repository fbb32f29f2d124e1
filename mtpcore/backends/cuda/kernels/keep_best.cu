/* y[row] = x[row] where it is one of the n largest values of its row, the first ones among equals, or
 * not a number; minus infinity elsewhere.
 *
 * The best that are left are found n times over, each the best of those after the one before; the
 * last one says which are kept. Grid: rows. Block: 1024.
 */
#include "best_first.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    keep_best(const float *__restrict__ x, float *__restrict__ y, int n_columns, int n)
{
    __shared__ Placed best[THREADS];
    const float *own = x + (size_t)blockIdx.x * n_columns;
    float *made = y + (size_t)blockIdx.x * n_columns;
    Placed last = before_all();
    for (int i = 0; i < n && last.column < n_columns; i++)
        last = next_best(own, n_columns, last, best);
    for (int c = threadIdx.x; c < n_columns; c += THREADS) {
        const Placed one = {own[c], c};
        made[c] = is_before(last, one) ? least() : own[c];
    }
}
