#ifndef MTPCORE_EMULATED
/* Float16 bits to float; written out, since CUDA's headers are no part of the compiler's package. */
__device__ __forceinline__ float widen(unsigned short half)
{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
}

/* Float to the nearest float16, half to even; what is too large becomes infinite. */
__device__ __forceinline__ unsigned short narrow(float value)
{
    unsigned short half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
}
#endif
