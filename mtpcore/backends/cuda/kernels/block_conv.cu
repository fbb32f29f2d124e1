/* y[t] = the sum over taps j <= i of (w[part][j] + changes[t][j][group]) x[row i - j], for row i of a
 * block; `size` rows of a sequence are a block. Groups of neighbouring channels share their changes.
 *
 * Rows of a sequence stand in `order` from spans[t][1] on, row t at spans[t][0]. Taps are added from
 * the row's own on. Grid: (rows, width / 256 rounded up). Block: 256.
 */
#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS)
    block_conv(const float *__restrict__ x, const float *__restrict__ changes,
               const float *__restrict__ w, const int *__restrict__ order,
               const int *__restrict__ spans, float *__restrict__ y, int width, int size, int part,
               int n_taps, int n_groups)
{
    const int c = blockIdx.y * THREADS + threadIdx.x;
    const size_t t = blockIdx.x;
    if (c >= width)
        return;
    const int at = spans[3 * t], own = (at - spans[3 * t + 1]) % size;
    const int group = c / (width / n_groups);
    float total = 0.0f;
    for (int j = 0; j < n_taps && j <= own; j++) {
        const float tap = w[((size_t)part * n_taps + j) * width + c] +
                          changes[(t * n_taps + j) * n_groups + group];
        total = fmaf(tap, x[(size_t)order[at - j] * width + c], total);
    }
    y[t * width + c] = total;
}
