/* Products of the tensor cores: 16 rows of weights by 8 columns of x, in int8, added to `from`.
 *
 * Lane 4 g + q holds rows g and g + 8 of the left side (registers 0 and 1, 2 and 3 in turns), column g
 * of the right side, and of the result rows g (0, 1) and g + 8 (2, 3), columns 2q and 2q + 1. The
 * emulated device has these functions of its own.
 */
#ifndef MTPCORE_EMULATED
/* Of 32: columns 4q.. and 16 + 4q... */
__device__ __forceinline__ void multiply(int (&to)[4], const unsigned (&a)[4], unsigned b0,
                                                unsigned b1, const int (&from)[4])
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(from[0]),
          "r"(from[1]), "r"(from[2]), "r"(from[3]));
}

/* Of 16: columns 4q... */
__device__ __forceinline__ void multiply_half(int (&to)[4], unsigned a0, unsigned a1,
                                                     unsigned b, const int (&from)[4])
{
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 "
        "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10};"
        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
        : "r"(a0), "r"(a1), "r"(b), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]));
}
#endif
