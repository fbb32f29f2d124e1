/* y[row] = x[row] where it is one of the n largest values of its row, the first ones among equals, or
 * not a number; minus infinity elsewhere.
 *
 * The best that are left are found n times over, each the best of those after the one before; the
 * last one says which are kept. Grid: rows. Block: 1024.
 */
#define THREADS 1024

/* A value of a row, and its column; n_columns where there is none. */
struct Placed {
    float value;
    int column;
};

static __device__ __forceinline__ bool is_before(Placed a, Placed b)
{
    return a.value > b.value || (a.value == b.value && a.column < b.column);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    keep_best(const float *__restrict__ x, float *__restrict__ y, int n_columns, int n)
{
    __shared__ Placed best[THREADS];
    const float least = __uint_as_float(0xff800000u);
    const float *own = x + (size_t)blockIdx.x * n_columns;
    float *made = y + (size_t)blockIdx.x * n_columns;
    Placed last = {-least, -1};
    for (int i = 0; i < n && last.column < n_columns; i++) {
        Placed next = {least, n_columns};
        for (int c = threadIdx.x; c < n_columns; c += THREADS) {
            const Placed one = {own[c], c};
            if (is_before(last, one) && is_before(one, next))
                next = one;
        }
        best[threadIdx.x] = next;
        __syncthreads();
        for (int half = THREADS / 2; half > 0; half /= 2) {
            if (threadIdx.x < half && is_before(best[threadIdx.x + half], best[threadIdx.x]))
                best[threadIdx.x] = best[threadIdx.x + half];
            __syncthreads();
        }
        last = best[0];
        __syncthreads();
    }
    for (int c = threadIdx.x; c < n_columns; c += THREADS) {
        const Placed one = {own[c], c};
        made[c] = is_before(last, one) ? least : own[c];
    }
}
