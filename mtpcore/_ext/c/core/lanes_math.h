/* Functions of sixteen lanes in fused multiply-adds; errors are a few units in the last place. */
#ifndef MTPCORE_LANES_MATH_H
#define MTPCORE_LANES_MATH_H

#include "core/lanes.h"

/* Order of mtpcore.graph.ops.ACTIVATIONS. */
enum {
    MTP_SILU,
    MTP_GELU,
    MTP_GELU_TANH,
    MTP_RELU,
    MTP_SIGMOID,
    MTP_TANH,
    MTP_SOFTPLUS,
    MTP_GELU_SIGMOID
};

#define POLYNOMIAL(x, ...)                                                                         \
    lanes_polynomial(x, (const float[]){__VA_ARGS__},                                              \
                     (int)(sizeof((const float[]){__VA_ARGS__}) / sizeof(float)))

/* Horner's rule, highest power first. */
INLINE lanes lanes_polynomial(lanes x, const float *c, int n)
{
    lanes y = lanes_all(c[0]);
    for (int i = 1; i < n; i++)
        y = lanes_fma(y, x, lanes_all(c[i]));
    return y;
}

/* exp(x) = 2^n exp(r), |r| <= ln(2) / 2, by its Taylor series; 0 below -87.3 (no subnormal
 * results), infinite above 88.37. */
INLINE lanes lanes_exp(lanes x)
{
    const lanes shift = lanes_all(0x1.8p23f);
    const lanes t = lanes_fma(x, lanes_all(0x1.715476p0f), shift); /* log2(e) */
    const lanes n = lanes_sub(t, shift);
    lanes r = lanes_fma(n, lanes_all(-0x1.62e4p-1f), x); /* ln(2) in two parts */
    r = lanes_fma(n, lanes_all(-0x1.7f7d1cp-20f), r);
    const lanes y =
        POLYNOMIAL(r, 1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f);
    const lanes scaled = lanes_mul(y, lanes_power_of_two(t));
    const lanes small = lanes_all(-87.3f), large = lanes_all(88.37f);
    return lanes_if_less(x, small, lanes_all(0),
                         lanes_if_less(large, x, lanes_all(INFINITY), scaled));
}

INLINE lanes lanes_magnitude(lanes x) { return lanes_larger(x, lanes_sub(lanes_all(0), x)); }

/* exp(x) - 1, near 0 by the series of (exp(x) - 1) / x. */
INLINE lanes lanes_expm1(lanes x)
{
    const lanes series =
        POLYNOMIAL(x, 1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f);
    const lanes far = lanes_sub(lanes_exp(x), lanes_all(1));
    return lanes_if_less(lanes_magnitude(x), lanes_all(0.3f), lanes_mul(x, series), far);
}

INLINE lanes lanes_sigmoid(lanes x)
{
    const lanes one = lanes_all(1);
    return lanes_div(one, lanes_add(one, lanes_exp(lanes_sub(lanes_all(0), x))));
}

/* Near 0 by the series of tanh(x) / x, elsewhere 1 - 2 / (exp(2 |x|) + 1) with the sign of x. */
INLINE lanes lanes_tanh(lanes x)
{
    const lanes one = lanes_all(1), zero = lanes_all(0), size = lanes_magnitude(x);
    const lanes square = lanes_mul(x, x);
    const lanes series = POLYNOMIAL(square, -1382.0f / 155925, 62.0f / 2835, -17.0f / 315,
                                    2.0f / 15, -1.0f / 3, 1.0f);
    const lanes e = lanes_exp(lanes_add(size, size));
    const lanes far = lanes_sub(one, lanes_div(lanes_all(2), lanes_add(e, one)));
    const lanes signed_far = lanes_if_less(x, zero, lanes_sub(zero, far), far);
    return lanes_if_less(size, lanes_all(0.3f), lanes_mul(x, series), signed_far);
}

/* x times the normal distribution's integral, whose tail is erfc(|x| / sqrt 2) / 2; erfc by formula
 * 7.1.26 of Abramowitz and Stegun's handbook (absolute error 1.5e-7). */
INLINE lanes lanes_gelu(lanes x)
{
    const lanes one = lanes_all(1), size = lanes_mul(lanes_magnitude(x), lanes_all(0x1.6a09e6p-1f));
    const lanes t = lanes_div(one, lanes_fma(lanes_all(0.3275911f), size, one));
    const lanes series =
        POLYNOMIAL(t, 1.061405429f, -1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f, 0.0f);
    const lanes e = lanes_exp(lanes_sub(lanes_all(0), lanes_mul(size, size)));
    const lanes tail = lanes_mul(lanes_all(0.5f), lanes_mul(series, e));
    return lanes_mul(x, lanes_if_less(x, lanes_all(0), tail, lanes_sub(one, tail)));
}

INLINE lanes lanes_gelu_tanh(lanes x)
{
    const lanes cubed = lanes_mul(lanes_mul(x, x), x);
    const lanes inner = lanes_mul(lanes_all(0x1.988454p-1f), /* sqrt(2 / pi) */
                                  lanes_fma(lanes_all(0.044715f), cubed, x));
    const lanes half = lanes_mul(lanes_all(0.5f), x);
    return lanes_fma(half, lanes_tanh(inner), half);
}

/* log(1 + exp(x)): the larger of x and 0, plus log(1 + e) with e = exp(-|x|). That is 2 atanh(s) with
 * s = e / (2 + e) <= 1 / 3, by its Taylor series, so that nothing is lost where e is small. */
INLINE lanes lanes_softplus(lanes x)
{
    const lanes e = lanes_exp(lanes_sub(lanes_all(0), lanes_magnitude(x)));
    const lanes s = lanes_div(e, lanes_add(lanes_all(2), e));
    const lanes series = POLYNOMIAL(lanes_mul(s, s), 1.0f / 15, 1.0f / 13, 1.0f / 11, 1.0f / 9,
                                    1.0f / 7, 1.0f / 5, 1.0f / 3, 1.0f);
    return lanes_add(lanes_larger(x, lanes_all(0)), lanes_mul(lanes_add(s, s), series));
}

INLINE lanes lanes_activation(int64_t kind, lanes x)
{
    switch (kind) {
    case MTP_SILU:
        return lanes_mul(x, lanes_sigmoid(x));
    case MTP_GELU:
        return lanes_gelu(x);
    case MTP_GELU_TANH:
        return lanes_gelu_tanh(x);
    case MTP_RELU:
        return lanes_if_less(x, lanes_all(0), lanes_all(0), x);
    case MTP_SIGMOID:
        return lanes_sigmoid(x);
    case MTP_TANH:
        return lanes_tanh(x);
    case MTP_GELU_SIGMOID:
        return lanes_mul(x, lanes_sigmoid(lanes_mul(lanes_all(1.702f), x)));
    default:
        return lanes_softplus(x);
    }
}

#endif
