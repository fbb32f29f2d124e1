/* The values of a row, the best one first, the first of equals, not a number as minus infinity: found
 * one after the other by a block of THREADS. */
#define THREADS 1024

/* A value of a row, and its column; n_columns where there is none. */
struct Placed {
    float value;
    int column;
};

static __device__ __forceinline__ float least()
{
    return __uint_as_float(0xff800000u); /* minus infinity */
}

/* What comes before all values. */
static __device__ __forceinline__ Placed before_all() { return Placed{-least(), -1}; }

static __device__ __forceinline__ bool is_before(Placed a, Placed b)
{
    return a.value > b.value || (a.value == b.value && a.column < b.column);
}

static __device__ __forceinline__ float number_or_least(float x) { return x == x ? x : least(); }

/* The best value after another one, for each thread; `best` has room for THREADS. */
static __device__ __forceinline__ Placed next_best(const float *row, int n_columns, Placed last,
                                                   Placed *best)
{
    Placed next = {least(), n_columns};
    for (int c = threadIdx.x; c < n_columns; c += THREADS) {
        const Placed one = {number_or_least(row[c]), c};
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
    next = best[0];
    __syncthreads();
    return next;
}
