/* y[row][v] = the value of output v where a cluster that has it was chosen for the row, minus
 * infinity elsewhere. ordering[cluster][number] are the outputs of clusters; values[row][rank] are
 * of cluster ids[row][rank]. One CTA for one row. Grid: rows. Block: 1024.
 */
#define THREADS 1024

extern "C" __global__ void __launch_bounds__(THREADS)
    scatter(const float *__restrict__ values, const int *__restrict__ ids,
            const int *__restrict__ ordering, float *y, int n_outputs, int n_ranks, int size)
{
    const size_t row = blockIdx.x;
    for (int v = threadIdx.x; v < n_outputs; v += THREADS)
        y[row * n_outputs + v] = __uint_as_float(0xff800000u);
    __syncthreads();
    for (int rank = 0; rank < n_ranks; rank++) {
        const size_t chosen = row * n_ranks + rank;
        const int *outputs = ordering + (size_t)ids[chosen] * size;
        for (int i = threadIdx.x; i < size; i += THREADS)
            y[row * n_outputs + outputs[i]] = values[chosen * size + i];
    }
}
