/* marks[begin + row] = whether row first + row of x holds a NaN or an infinity. Grid: rows. Block: 256.
 */
#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS)
    not_finite(const float *__restrict__ x, int *__restrict__ marks, long long first, int begin,
               int width)
{
    __shared__ int is_bad;
    if (threadIdx.x == 0)
        is_bad = 0;
    __syncthreads();
    const float *row = x + (first + blockIdx.x) * width;
    for (int i = threadIdx.x; i < width; i += THREADS)
        if ((__float_as_uint(row[i]) & 0x7f800000u) == 0x7f800000u)
            is_bad = 1; /* all that write, write the same */
    __syncthreads();
    if (threadIdx.x == 0)
        marks[begin + blockIdx.x] = is_bad;
}
