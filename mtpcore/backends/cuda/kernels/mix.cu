/* y[row] = sum over ranks of shares[row][rank] x[row][rank]: a chain of fused multiply-adds from
 * zero, in the order of the ranks; plus residual[row], where that is given.
 * Grid: values / 256 rounded up. Block: 256.
 */
#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS)
    mix(const float *__restrict__ x, const float *__restrict__ shares,
        const float *__restrict__ residual, float *__restrict__ y, int n_rows, int n_ranks, int width)
{
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    const long long row = at / width;
    if (row >= n_rows)
        return;
    const float *in = x + row * n_ranks * width + at % width;
    float total = 0.0f;
    for (int rank = 0; rank < n_ranks; rank++)
        total = fmaf(shares[row * n_ranks + rank], in[(size_t)rank * width], total);
    y[at] = residual ? total + residual[at] : total;
}
