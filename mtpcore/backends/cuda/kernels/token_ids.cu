/* ids[t][i] = tables[t][i] * n_second + token t, or `absent` where that is negative; the row after all
 * tables where there is no token, or the table is the last of n_first.
 * Grid: ids / 256 rounded up. Block: 256.
 */
#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS)
    token_ids(const int *__restrict__ tokens, const int *__restrict__ tables, int *__restrict__ ids,
              long long n, int width, int n_first, int n_second, int absent)
{
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at < n) {
        const int given = tokens[at / width], token = given < 0 ? absent : given;
        const int has_row = token >= 0 && tables[at] < n_first - 1;
        ids[at] = has_row ? tables[at] * n_second + token : (n_first - 1) * n_second;
    }
}
