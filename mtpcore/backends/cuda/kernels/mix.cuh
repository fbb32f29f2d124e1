/* One value of a row that is mixed of `n_ranks`, which lie `width` apart from `x` on: a chain of fused
 * multiply-adds with their shares from zero, in the order of the ranks; plus first[at], then second[at],
 * where these are given.
 */
static __device__ __forceinline__ float mixed(const float *x, int n_ranks, int width,
                                              const float *shares, const float *first,
                                              const float *second, size_t at)
{
    float total = 0.0f;
    for (int rank = 0; rank < n_ranks; rank++)
        total = fmaf(shares[rank], x[(size_t)rank * width], total);
    total = first ? total + first[at] : total;
    return second ? total + second[at] : total;
}
