/* y[t] = the mean of its block's rows, or where MIX the sum over j <= i of w[i][j] x[row j], for row i
 * of a block; `size` rows of a sequence are a block, the last one has those that are left.
 *
 * Rows of a sequence stand in `order` from spans[t][1] to spans[t][2], row t at spans[t][0]. Rows are
 * added from the first one on. Grid: (rows, width / 256 rounded up). Block: 256.
 */
#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS)
    block(const float *__restrict__ x, const float *__restrict__ w, const int *__restrict__ order,
          const int *__restrict__ spans, float *__restrict__ y, int width, int size)
{
    const int c = blockIdx.y * THREADS + threadIdx.x;
    const size_t t = blockIdx.x;
    if (c >= width)
        return;
    const int at = spans[3 * t], begin = spans[3 * t + 1], end = spans[3 * t + 2];
    const int own = (at - begin) % size, first = at - own;
    float total = 0.0f;
    if (MIX) {
        for (int j = 0; j <= own; j++)
            total = fmaf(w[((size_t)own * size + j) * width + c],
                         x[(size_t)order[first + j] * width + c], total);
    } else {
        const int n = end - first < size ? end - first : size;
        for (int j = 0; j < n; j++)
            total += x[(size_t)order[first + j] * width + c];
        total = __fdiv_rn(total, (float)n);
    }
    y[t * width + c] = total;
}
