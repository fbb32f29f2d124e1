/* ids[row][i] = first * n_second + second[row][i], with the id in a column of the row's first ones;
 * where that is the last of n_first, that times n_second alone.
 * Grid: ids / 256 rounded up. Block: 256.
 */
#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS)
    pair_ids(const int *__restrict__ first, const int *__restrict__ second, int *__restrict__ ids,
             long long n, int first_width, int column, int width, int n_first, int n_second)
{
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at < n) {
        const int one = first[at / width * first_width + column];
        ids[at] = one * n_second + (one < n_first - 1 ? second[at] : 0);
    }
}
