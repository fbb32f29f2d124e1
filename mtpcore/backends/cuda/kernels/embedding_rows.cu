/* y[t] = given[t] where tokens[t] is negative, else zeros.
 *
 * Grid: (rows, columns / 256 rounded up). Block: 256.
 */
#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS)
    embedding_rows(const int *__restrict__ tokens, const float *__restrict__ given,
                   float *__restrict__ y, int n_cols)
{
    const int column = blockIdx.y * THREADS + threadIdx.x;
    const size_t t = blockIdx.x;
    if (column < n_cols)
        y[t * n_cols + column] = tokens[t] < 0 ? given[t * n_cols + column] : 0.0f;
}
