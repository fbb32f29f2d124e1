/* What lanes of a warp show each other; every lane must come here. */
#define EVERY_LANE 0xffffffffu

/* Values become those of the lane whose number differs in one bit. The emulated device has a function
 * of its own, for which lanes meet once for all values. */
#ifndef MTPCORE_EMULATED
template <int N> __device__ __forceinline__ void exchange(float (&values)[N], int bit)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        values[i] = __shfl_xor_sync(EVERY_LANE, values[i], bit);
}
#endif
