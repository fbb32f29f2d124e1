/* Quantised weights in the order in which lanes read them: layout.py says how, and which variant a
 * type is.
 *
 * A code has LOW bits and HIGH more above them; it stands for itself less OFFSET, or for a place in
 * TABLE. BLOCK columns share a scale, and where SUB is not 0, as many of them a whole factor. Where
 * MINIMA, a second scale times a whole minimum (of a block of 32: minus one) is taken away.
 */
#define STEPS (BLOCK / 32)
#define PARTS (SUB ? BLOCK / (SUB ? SUB : 1) : 0)
#define SETS (MINIMA && !NIBBLES ? 2 : 1)

/* A scale of a block: float16, or for MXFP4 an exponent with an offset of 128. */
#if EXPONENTS
typedef unsigned char Scale;
__device__ __forceinline__ float scale_of(Scale code)
{
    return __uint_as_float(code < 2 ? 0x00200000u << code : (unsigned)(code - 1) << 23);
}
#else
typedef unsigned short Scale;
__device__ __forceinline__ float scale_of(Scale half) { return widen(half); }
#endif

/* A lane's codes of 32 columns: LOW bits of 16 codes, and HIGH bits of 16. */
#if LOW == 8
typedef uint4 Low;
#elif LOW == 4
typedef uint2 Low;
#else
typedef unsigned Low;
#endif
#if HIGH == 2
typedef unsigned High;
#else
typedef unsigned short High;
#endif

#define EACH_BYTE(byte) ((byte) * 0x01010101u)

/* Bits moved to the left, or, where n is negative, to the right. */
__device__ __forceinline__ unsigned moved(unsigned bits, int n)
{
    return n < 0 ? bits >> -n : bits << n;
}

#ifdef TABLE
#ifdef MTPCORE_EMULATED
#define permute __byte_perm
#else
/* Four of the eight bytes of low and high, those of the lowest four nibbles, each below eight. */
__device__ __forceinline__ unsigned permute(unsigned low, unsigned high, unsigned nibbles)
{
    unsigned chosen;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(chosen) : "r"(low), "r"(high), "r"(nibbles));
    return chosen;
}
#endif

/* The values of eight codes, of a register's four and of another's. */
__device__ __forceinline__ void look_up(unsigned codes, unsigned *first, unsigned *second)
{
    const unsigned table[4] = {TABLE};
    /* A code's lower three bits choose in each half of the table, the fourth chooses the half. */
    const unsigned places = codes & 0x77777777u, halves = 0x32103210u | (codes & 0x88888888u) >> 1;
    *first = permute(permute(table[0], table[1], places), permute(table[2], table[3], places),
                     halves);
    *second = permute(permute(table[0], table[1], places >> 16),
                      permute(table[2], table[3], places >> 16), halves >> 16);
}
#endif

/* The registers of a product's left side, OFFSET included: rows g and g + 8, columns 4q.. and
 * 16 + 4q... */
__device__ __forceinline__ void unpack(unsigned (&a)[4], const Low *low, const High *high,
                                       size_t at)
{
    const Low codes = low[at];
#if LOW == 8
    a[0] = codes.x, a[1] = codes.y, a[2] = codes.z, a[3] = codes.w;
#elif defined(TABLE)
    look_up(codes.x, &a[0], &a[2]);
    look_up(codes.y, &a[1], &a[3]);
#elif LOW == 4
    a[0] = codes.x & EACH_BYTE(15u), a[2] = codes.x >> 4 & EACH_BYTE(15u);
    a[1] = codes.y & EACH_BYTE(15u), a[3] = codes.y >> 4 & EACH_BYTE(15u);
#else
    for (int i = 0; i < 4; i++)
        a[i] = codes >> 2 * i & EACH_BYTE(3u);
#endif
#if HIGH == 2
    const unsigned upper = high[at];
    for (int i = 0; i < 4; i++)
        a[i] |= moved(upper, LOW - 2 * i) & EACH_BYTE(3u << LOW);
#elif HIGH == 1
    const unsigned packed = high[at], upper = (packed & 0x0f0fu) | (packed & 0xf0f0u) << 12;
    for (int i = 0; i < 4; i++)
        a[i] |= moved(upper, LOW - i) & EACH_BYTE(1u << LOW);
#endif
}

/* A whole factor as its lowest byte has it. */
__device__ __forceinline__ int factor_of(unsigned code)
{
    return NIBBLES ? (int)(code & 15) : (int)(signed char)code;
}
