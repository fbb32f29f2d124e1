/* y[row] = given[row] plus the sum over ranks of shares[row][rank] x[row][rank] whose id is below n: a
 * chain of fused multiply-adds from zero, in the order of the ranks; given[row] itself where there is none.
 * Grid: values / 256 rounded up. Block: 256.
 */
#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS)
    add_chosen(const float *__restrict__ given, const float *__restrict__ x,
               const int *__restrict__ ids, const float *__restrict__ shares,
               float *__restrict__ y, int n_rows, int n_ranks, int width, int n)
{
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x, row = at / width;
    if (row >= n_rows)
        return;
    const float *in = x + row * n_ranks * width + at % width;
    float total = 0.0f;
    int is_chosen = 0;
    for (int rank = 0; rank < n_ranks; rank++)
        if (ids[row * n_ranks + rank] < n) {
            total = fmaf(shares[row * n_ranks + rank], in[(size_t)rank * width], total);
            is_chosen = 1;
        }
    y[at] = is_chosen ? given[at] + total : given[at];
}
