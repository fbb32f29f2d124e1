/* y = w x / sqrt(sum(x^2) / n + eps): one CTA for one row, so a row's bits depend on that row alone.
 *
 * Every thread adds the squares of its own columns in ascending order, then a fixed tree adds the
 * threads: lanes 16, 8, 4, 2, 1 apart, then the warps in order. A null weight stands for ones.
 * Grid: rows. Block: 256.
 */
#define THREADS 256
#define WARPS (THREADS / 32)

extern "C" __global__ void __launch_bounds__(THREADS)
    rms_norm(const float *__restrict__ x, const float *__restrict__ weight,
             float *__restrict__ y, int width, float n, float eps)
{
    __shared__ float partial[WARPS];
    const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    const float *row = x + (size_t)blockIdx.x * width;
    float *out = y + (size_t)blockIdx.x * width;

    float sum = 0.0f;
    for (int i = thread; i < width; i += THREADS)
        sum = fmaf(row[i], row[i], sum);
    for (int step = 16; step > 0; step >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0)
        partial[warp] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int i = 0; i < WARPS; i++)
        sum += partial[i];

    const float factor = __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(sum, n) + eps));
    for (int i = thread; i < width; i += THREADS)
        out[i] = row[i] * factor * (weight ? weight[i] : 1.0f);
}
