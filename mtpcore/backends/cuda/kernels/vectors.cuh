/* Sums in sixteen lanes: value i goes to lane i mod 16, ascending, and the lanes are added 8, 4, 2 and
 * 1 apart: the order, and the bits, of the CPU's kernels. */
#define LANES 16

__device__ __forceinline__ float sum_of_lanes(float (&lanes)[LANES])
{
#pragma unroll
    for (int half = LANES / 2; half > 0; half /= 2)
#pragma unroll
        for (int i = 0; i < half; i++)
            lanes[i] += lanes[i + half];
    return lanes[0];
}

/* The product of two vectors, by one thread; each product is added unrounded. */
__device__ __forceinline__ float inner_product(const float *a, const float *b, int n)
{
    float lanes[LANES] = {};
    for (int c = 0; c < n; c += LANES)
#pragma unroll
        for (int i = 0; i < LANES; i++)
            if (c + i < n)
                lanes[i] = fmaf(a[c + i], b[c + i], lanes[i]);
    return sum_of_lanes(lanes);
}
