/* The sampler's noise, with the bits of _ext/c/sampler: Philox4x32-10, and a logarithm of additions,
 * multiplications and divisions alone, each rounded once. */

#define LN2 0x1.62e42fefa39efp-1

/* Who chooses from a row of logits; CHOOSER of launch/tokens.py. */
struct Chooser {
    double temperature;
    unsigned long long seed, stream;
    unsigned index; /* of the chosen token in its sequence */
    int row;
};

/* The random bits of a token: the lower and the upper word. */
__device__ __forceinline__ uint2 noise_bits(const Chooser &chooser, int token_id)
{
    unsigned a = (unsigned)token_id, b = chooser.index;
    unsigned c = (unsigned)chooser.stream, d = (unsigned)(chooser.stream >> 32);
    unsigned key0 = (unsigned)chooser.seed, key1 = (unsigned)(chooser.seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const unsigned long long product0 = 0xD2511F53ull * a, product1 = 0xCD9E8D57ull * c;
        a = (unsigned)(product1 >> 32) ^ b ^ key0;
        b = (unsigned)product1;
        c = (unsigned)(product0 >> 32) ^ d ^ key1;
        d = (unsigned)product0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return uint2{a, b};
}

/* log(x) of a positive normal x: x = 2^e m with m in [sqrt(1/2), sqrt(2)), log m = 2 atanh(s) with
 * s = (m - 1) / (m + 1), by its Taylor series. */
__device__ __forceinline__ double logarithm(double x)
{
    const double series[] = {2.0 / 21, 2.0 / 19, 2.0 / 17, 2.0 / 15, 2.0 / 13,
                             2.0 / 11, 2.0 / 9,  2.0 / 7,  2.0 / 5,  2.0 / 3};
    const long long bits = __double_as_longlong(x);
    const long long exponent = (bits - 0x3FE6A09E667F3BCDll) >> 52;
    const double m = __longlong_as_double(bits - exponent * (1ll << 52));
    const double s = (m - 1.0) / (m + 1.0), z = s * s, e = (double)exponent;
    double p = series[0];
#pragma unroll
    for (int i = 1; i < 10; i++)
        p = p * z + series[i];
    return e * 0x1.62e42feep-1 + (2.0 * s + (s * z * p + e * 0x1.a39ef35793c76p-33));
}

/* -log(-log u), u being the upper 52 of 64 bits and a half, times 2^-52. */
__device__ __forceinline__ double gumbel(uint2 bits)
{
    const unsigned long long all = (unsigned long long)bits.y << 32 | bits.x;
    const double u = ((double)(all >> 12) + 0.5) * 0x1p-52;
    return -logarithm(-logarithm(u));
}

/* No noise whose bits have this upper word is larger: -log u is at least 1 - u, at least y 2^-24 with
 * the upper 24 bits inverted as y; and the bits of a float, read as an integer, are
 * 2^23 (127 + log2 y) or less, since log2 is above its chords. */
__device__ __forceinline__ double noise_bound(unsigned upper)
{
    const unsigned bits = __float_as_uint((float)(int)(~upper >> 8));
    return (24 + 127) * LN2 + 1e-9 - (double)(int)bits * (LN2 / (1 << 23));
}
