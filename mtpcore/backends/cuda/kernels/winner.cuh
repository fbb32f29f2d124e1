/* The best of many: the largest score, of equal ones the lowest row. That is a total order, so it
 * does not matter in which order they are compared. */
#define THREADS 256
#define NOBODY 0x7fffffff

struct Winner {
    double score;
    int row;
};

__device__ __forceinline__ Winner nobody()
{
    return Winner{(double)__uint_as_float(0xff800000u), NOBODY}; /* minus infinity */
}

__device__ __forceinline__ Winner better(Winner a, Winner b)
{
    const bool take = b.score > a.score || (b.score == a.score && b.row < a.row);
    return take ? b : a;
}

/* The best of all threads, for each of them; `partial` has room for one of each warp. */
__device__ __forceinline__ Winner best_of_block(Winner best, Winner *partial)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (int step = 16; step > 0; step >>= 1) {
        const double score = __shfl_xor_sync(0xffffffffu, best.score, step);
        const int row = __shfl_xor_sync(0xffffffffu, best.row, step);
        best = better(best, Winner{score, row});
    }
    if (lane == 0)
        partial[warp] = best;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++)
        best = better(best, partial[i]);
    return best;
}
