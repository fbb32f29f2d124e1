/* The cuts top_k, top_p and min_p. Tokens are ordered by a key, larger first, that no two of them
 * share: the logit's bits, and the row. The first two cuts keep a prefix of that order, whose last
 * key is found digit after digit (tally.cu, descend.cu) by counts and sums of whole numbers, which
 * are the same in every order; min_p looks at each token by itself. */

#define DIGIT 8 /* bits */
#define DIGITS (1 << DIGIT)
#define MASS_ONE 0x1p40 /* units of the largest probability */

/* The cuts of a row, and how far its last key is found; CUT of launch/tokens.py. */
struct Cut {
    double top_p, min_p, wanted;   /* wanted: the mass that ends the prefix */
    unsigned long long last, mass; /* mass: of the keys above all that begin as `last` does */
    long long top_k, count;        /* count: of the same keys */
    int is_open;                   /* whether a prefix is looked for */
};

/* Tokens whose keys have the same digit; TALLY of launch/tokens.py. */
struct Tally {
    unsigned long long mass, count;
};

/* The key of a token, above 0; NaN and -inf have none. */
__device__ __forceinline__ unsigned long long key_of(float logit, int row, int row_bits)
{
    const unsigned bits = __float_as_uint(logit + 0.0f); /* there is one zero */
    const unsigned rising = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (unsigned long long)rising << row_bits | ((1u << row_bits) - 1 - (unsigned)row);
}

/* exp(x) for -700 < x < 700, with the bits of _ext/c/core/logarithm.h. */
__device__ __forceinline__ double exponential_of(double x)
{
    const double series[] = {1.0 / 6227020800.0,
                             1.0 / 479001600.0,
                             1.0 / 39916800.0,
                             1.0 / 3628800.0,
                             1.0 / 362880.0,
                             1.0 / 40320.0,
                             1.0 / 5040.0,
                             1.0 / 720.0,
                             1.0 / 120.0,
                             1.0 / 24.0,
                             1.0 / 6.0,
                             0.5,
                             1.0,
                             1.0};
    const double shifted = x * 0x1.71547652b82fep+0 + 0x1.8p52, k = shifted - 0x1.8p52;
    const double r = (x - k * 0x1.62e42feep-1) - k * 0x1.a39ef35793c76p-33;
    double p = series[0];
#pragma unroll
    for (int i = 1; i < 14; i++)
        p = p * r + series[i];
    return p * __longlong_as_double(
                   (long long)((unsigned long long)(__double_as_longlong(shifted) + 1023) << 52));
}

/* The probability of a token in units: exp(logit - max), rounded to a whole number. */
__device__ __forceinline__ unsigned long long mass_of(float logit, float max)
{
    const double gap = logit == max ? 0.0 : (double)logit - (double)max;
    const double counted = exponential_of(gap > -40.0 ? gap : -40.0) * MASS_ONE + 0x1p52;
    return (unsigned long long)(__double_as_longlong(counted) - 0x4330000000000000ll);
}
