/* Quantised weights in the order in which lanes read them: layout.py says how, and which variant a
 * type is.
 *
 * A code has LOW bits and HIGH more above them; it stands for itself less OFFSET, or for a place in
 * TABLE. BLOCK columns share a scale, and where SUB is not 0, as many of them a whole factor. Where
 * MINIMA, a second scale times a whole minimum (of a block of 32: minus one) is taken away.
 */
#define STEPS (BLOCK / 32)
#define STEPS_OF_WORD (SUB ? SUB / 8 : 1) /* four parts share a word of factors */

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

#ifdef TABLE
/* The values of eight codes: of the low halves of bytes, and of the high ones. */
__device__ __forceinline__ void look_up(unsigned codes, unsigned *low, unsigned *high)
{
    const unsigned table[4] = {TABLE};
    /* A code's lower three bits choose in each half of the table, the fourth chooses the half. */
    const unsigned halves = 0x32103210u | (codes & 0x88888888u) >> 1;
    unsigned values[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const unsigned places = codes >> 16 * i & 0x7777u;
        values[i] =
            __byte_perm(__byte_perm(table[0], table[1], places),
                        __byte_perm(table[2], table[3], places), halves >> 16 * i & 0x7777u);
    }
    *low = __byte_perm(values[0], values[1], 0x6420u);
    *high = __byte_perm(values[0], values[1], 0x7531u);
}
#endif

/* The registers of a product's left side: rows g and g + 8, columns 4q.. and 16 + 4q... */
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
        a[i] |= (upper >> 2 * i & EACH_BYTE(3u)) << LOW;
#elif HIGH == 1
    const unsigned packed = high[at], upper = (packed & 0x0f0fu) | (packed & 0xf0f0u) << 12;
    for (int i = 0; i < 4; i++)
        a[i] |= (upper >> i & EACH_BYTE(1u)) << LOW;
#endif
#if OFFSET
    for (int i = 0; i < 4; i++) /* no borrow crosses a byte */
        a[i] = ((a[i] | EACH_BYTE(0x80u)) - EACH_BYTE(OFFSET)) ^ EACH_BYTE(0x80u);
#endif
}

/* Whole factors, and minima, of four parts of a block, a byte each, for rows g and g + 8. */
struct Factors {
    unsigned factors[2], minima[2];
};

__device__ __forceinline__ Factors read_factors(const unsigned *subs, size_t block, int word,
                                                int g)
{
    Factors read = {};
#if SUB
    const int n_words = BLOCK / SUB / 4, sets = MINIMA && !NIBBLES ? 2 : 1;
    for (int half = 0; half < 2; half++) {
        const size_t at = (block * sets * 16 + g + 8 * half) * n_words + word;
        read.factors[half] = subs[at];
        if (sets == 2)
            read.minima[half] = subs[at + 16 * n_words];
    }
#endif
    return read;
}
