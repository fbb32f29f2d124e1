/* ids[row][i] = given[row][i] where that is one of 0 .. n - 1, else n; or of row rows[row], where rows
 * are given: those that are chosen.
 * Grid: ids / 256 rounded up. Block: 256.
 */
#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS)
    given_ids(const int *__restrict__ given, const int *__restrict__ rows, int *__restrict__ ids,
              long long n_rows, int width, int n)
{
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    const long long row = at / width;
    if (row < n_rows) {
        const int id = given[(rows ? rows[row] : row) * width + at % width];
        ids[at] = id >= 0 && id < n ? id : n;
    }
}
