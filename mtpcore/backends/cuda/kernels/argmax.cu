/* The id of each row's largest logit: the lowest id among equals, never a NaN's; 0 where a row
 * holds nothing but NaN. Pairs (value, id) have a total order, so the tree's shape does not matter.
 * Grid: rows. Block: 256.
 */
#define THREADS 256
#define NOBODY 0x7fffffff

struct Best {
    float value;
    int id;
};

static __device__ __forceinline__ Best better(Best a, Best b)
{
    const bool take = b.value > a.value || (b.value == a.value && b.id < a.id);
    return take ? b : a;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    argmax(const float *__restrict__ logits, int *__restrict__ ids, int n_vocab)
{
    __shared__ Best partial[THREADS / 32];
    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    const float *row = logits + (size_t)blockIdx.x * n_vocab;

    Best best = {__uint_as_float(0xff800000u), NOBODY}; /* minus infinity */
    for (int i = thread; i < n_vocab; i += THREADS)
        best = better(best, Best{row[i], i}); /* no comparison with NaN holds */
    for (int step = 16; step > 0; step >>= 1) {
        const Best other = {__shfl_xor_sync(0xffffffffu, best.value, step),
                            __shfl_xor_sync(0xffffffffu, best.id, step)};
        best = better(best, other);
    }
    if (lane == 0)
        partial[warp] = best;
    __syncthreads();
    if (thread == 0) {
        for (int i = 1; i < THREADS / 32; i++)
            best = better(best, partial[i]);
        ids[blockIdx.x] = best.id == NOBODY ? 0 : best.id;
    }
}
