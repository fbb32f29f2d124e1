/* y[to_row + row][y_begin + i] = x[from_row + row / repeats][x_begin + i] for i < width: parts of rows
 * joined, cut out or repeated; or row rows[row] of x, where rows are given: those that are chosen.
 * Grid: values / 256 rounded up. Block: 256.
 */
#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS)
    copy(const float *__restrict__ x, const int *__restrict__ rows, float *__restrict__ y,
         long long n_rows, long long from_row, long long to_row, int width, int x_width,
         int x_begin, int y_width, int y_begin, int repeats)
{
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    const long long row = at / width;
    const int i = (int)(at % width);
    if (row < n_rows) {
        const long long origin = rows ? rows[row] : from_row + row / repeats;
        y[(to_row + row) * y_width + y_begin + i] = x[origin * x_width + x_begin + i];
    }
}
