/* y[row][to + i] = x[row / repeats][from + i] for i < width: parts of rows joined, cut out or
 * repeated; or row rows[row] of x, where rows are given: those that are chosen. Grid: values / 256
 * rounded up. Block: 256.
 */
#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS)
    copy(const float *__restrict__ x, const int *__restrict__ rows, float *__restrict__ y,
         long long n_rows, int width, int x_width, int from, int y_width, int to, int repeats)
{
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    const long long row = at / width;
    const int i = (int)(at % width);
    if (row < n_rows)
        y[row * y_width + to + i] = x[(rows ? rows[row] : row / repeats) * x_width + from + i];
}
