/* y[t][rank] = the values of all candidates of a block, by the softmax of their keys times the query
 * times `scale`, plus a bias by the row of the query less that of the key, for each of n_heads parts
 * of the width. `size` rows of a sequence are a block; those before row `first` are not seen.
 *
 * Rows of a sequence stand in `order` from spans[t][1] to spans[t][2], row t at spans[t][0]. Products
 * and exponentials are added in sixteen lanes, values in the order of the candidates. Grid: (rows,
 * ranks, heads). Block: 256.
 */
#include "functions.cuh"
#include "vectors.cuh"

#define THREADS 256
#define CANDIDATES 2048 /* of a block */

extern "C" __global__ void __launch_bounds__(THREADS)
    block_attention(const float *__restrict__ q, const float *__restrict__ k,
                    const float *__restrict__ v, const float *__restrict__ bias,
                    const int *__restrict__ order, const int *__restrict__ spans,
                    float *__restrict__ y, int width, int n_ranks, int n_heads, int size, int first,
                    float scale)
{
    __shared__ float scores[CANDIDATES];
    __shared__ float tops[THREADS];
    __shared__ float lanes[LANES];
    const size_t t = blockIdx.x;
    const int each = width / n_heads, part = blockIdx.z * each;
    const int at = spans[3 * t], own = (at - spans[3 * t + 1]) % size, begin = at - own;
    const int n_left = spans[3 * t + 2] - begin, n_rows = n_left < size ? n_left : size;
    const int n_keys = n_rows > first ? (n_rows - first) * n_ranks : 0;
    const float *query = q + (t * n_ranks + blockIdx.y) * width + part;
    const float *of_head = bias + (size_t)blockIdx.z * (2 * size - 1) + own + size - 1;

    float top = __uint_as_float(0xff800000u);
    for (int m = threadIdx.x; m < n_keys; m += THREADS) {
        const int j = first + m / n_ranks;
        const size_t row = order[begin + j];
        const float *key = k + (row * n_ranks + m % n_ranks) * width + part;
        scores[m] = inner_product(query, key, each) * scale + of_head[-j];
        top = scores[m] > top ? scores[m] : top;
    }
    tops[threadIdx.x] = top;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half && tops[threadIdx.x + half] > tops[threadIdx.x])
            tops[threadIdx.x] = tops[threadIdx.x + half];
        __syncthreads();
    }
    for (int m = threadIdx.x; m < n_keys; m += THREADS)
        scores[m] = exponential(scores[m] - tops[0]);
    __syncthreads();
    if (threadIdx.x < LANES) {
        float sum = 0.0f;
        for (int m = threadIdx.x; m < n_keys; m += LANES)
            sum += scores[m];
        lanes[threadIdx.x] = sum;
    }
    __syncthreads();
    for (int half = LANES / 2; half > 0; half /= 2) {
        if (threadIdx.x < half)
            lanes[threadIdx.x] += lanes[threadIdx.x + half];
        __syncthreads();
    }
    const float total = n_keys ? lanes[0] : 1.0f;
    for (int c = threadIdx.x; c < each; c += THREADS) {
        float sum = 0.0f;
        for (int m = 0; m < n_keys; m++) {
            const size_t row = order[begin + first + m / n_ranks];
            sum = fmaf(scores[m], v[(row * n_ranks + m % n_ranks) * width + part + c], sum);
        }
        y[(t * n_ranks + blockIdx.y) * width + part + c] = __fdiv_rn(sum, total);
    }
}
