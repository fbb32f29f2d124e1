/* y = max(0, x - mean - n_deviations sqrt(mean((x - mean)^2))) of each row.
 *
 * One CTA for one row, so a row's bits depend on that row alone; its sums have the order of
 * normalise.cuh. Grid: rows. Block: 256.
 */
#include "quantise.cuh"
#include "normalise.cuh"

extern "C" __global__ void __launch_bounds__(256)
    gaussian_topk(const float *__restrict__ x, float *__restrict__ y, int width,
                  float n_deviations)
{
    __shared__ float partial[2 * ALL_WARPS];
    x += (size_t)blockIdx.x * width;
    y += (size_t)blockIdx.x * width;

    /* Calls take(column) for all columns of this thread. */
    const auto for_columns = [&](const auto &take) {
        for (int first = threadIdx.x * EACH; first < width; first += OF_STRETCH)
            for (int i = first; i < first + EACH && i < width; i++)
                take(i);
    };
    float sum = 0.0f, squares = 0.0f;
    for_columns([&](int i) { sum += x[i]; });
    const float mean = __fdiv_rn(total_of(sum, partial + ALL_WARPS), (float)width);
    for_columns([&](int i) { squares = fmaf(x[i] - mean, x[i] - mean, squares); });
    const float deviation = __fsqrt_rn(__fdiv_rn(total_of(squares, partial), (float)width));
    const float cutoff = n_deviations * deviation;
    for_columns([&](int i) {
        const float above = (x[i] - mean) - cutoff;
        y[i] = above < 0.0f ? 0.0f : above;
    });
}
