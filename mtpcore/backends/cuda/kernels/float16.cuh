#ifndef MTPCORE_EMULATED
/* Float16 bits to float; written out, since CUDA's headers are no part of the compiler's package. */
__device__ __forceinline__ float widen(unsigned short half)
{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
}
#endif
