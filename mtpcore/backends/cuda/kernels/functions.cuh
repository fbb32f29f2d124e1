/* exp and the functions built on it: the polynomials, and the bits, of the CPU's kernels
 * (_ext/c/core/lanes_math.h); no library's function is used. */

/* Order of mtpcore.graph.ops.ACTIVATIONS. */
enum { SILU, GELU, GELU_TANH, RELU, SIGMOID, TANH, SOFTPLUS, GELU_SIGMOID };

/* c[0] x^(N - 1) + ... + c[N - 1] by Horner's rule, highest power first. */
template <int N> __device__ __forceinline__ float polynomial(float x, const float (&c)[N])
{
    float y = c[0];
#pragma unroll
    for (int i = 1; i < N; i++)
        y = fmaf(y, x, c[i]);
    return y;
}

/* exp(x) = 2^n exp(r), |r| <= ln(2) / 2, by its Taylor series; 0 below -87.3 (no subnormal
 * results), infinite above 88.37. */
__device__ __forceinline__ float exponential(float x)
{
    const float taylor[] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24,
                            1.0f / 6,    0.5f,       1.0f,       1.0f};
    const float shift = 0x1.8p23f;
    const float shifted = fmaf(x, 0x1.715476p0f, shift); /* log2(e) */
    const float n = shifted - shift;
    float r = fmaf(n, -0x1.62e4p-1f, x); /* ln(2) in two parts */
    r = fmaf(n, -0x1.7f7d1cp-20f, r);
    const float power = __uint_as_float((__float_as_uint(shifted) << 23) + 0x3f800000u);
    const float scaled = polynomial(r, taylor) * power;
    return x < -87.3f ? 0.0f : x > 88.37f ? __uint_as_float(0x7f800000u) : scaled;
}

__device__ __forceinline__ float magnitude(float x) { return x > 0.0f - x ? x : 0.0f - x; }

/* exp(x) - 1, near 0 by the series of (exp(x) - 1) / x. */
__device__ __forceinline__ float exponential_less_one(float x)
{
    const float series[] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f};
    return magnitude(x) < 0.3f ? x * polynomial(x, series) : exponential(x) - 1.0f;
}

__device__ __forceinline__ float sigmoid(float x)
{
    return __fdiv_rn(1.0f, 1.0f + exponential(0.0f - x));
}

/* Near 0 by the series of tanh(x) / x, elsewhere 1 - 2 / (exp(2 |x|) + 1) with the sign of x. */
__device__ __forceinline__ float hyperbolic_tangent(float x)
{
    const float series[] = {-1382.0f / 155925, 62.0f / 2835, -17.0f / 315,
                            2.0f / 15,         -1.0f / 3,    1.0f};
    const float size = magnitude(x);
    const float far = 1.0f - __fdiv_rn(2.0f, exponential(size + size) + 1.0f);
    return size < 0.3f ? x * polynomial(x * x, series) : x < 0.0f ? 0.0f - far : far;
}

/* x times the normal distribution's integral, whose tail is erfc(|x| / sqrt 2) / 2; erfc by formula
 * 7.1.26 of Abramowitz and Stegun's handbook (absolute error 1.5e-7). */
__device__ __forceinline__ float gelu(float x)
{
    const float erfc[] = {1.061405429f,  -1.453152027f, 1.421413741f,
                          -0.284496736f, 0.254829592f,  0.0f};
    const float size = magnitude(x) * 0x1.6a09e6p-1f;
    const float t = __fdiv_rn(1.0f, fmaf(0.3275911f, size, 1.0f));
    const float tail = 0.5f * (polynomial(t, erfc) * exponential(0.0f - size * size));
    return x * (x < 0.0f ? tail : 1.0f - tail);
}

__device__ __forceinline__ float gelu_tanh(float x)
{
    const float half = 0.5f * x;
    const float inner = 0x1.988454p-1f /* sqrt(2 / pi) */ * fmaf(0.044715f, x * x * x, x);
    return fmaf(half, hyperbolic_tangent(inner), half);
}

/* log(1 + exp(x)): the larger of x and 0, plus log(1 + e) with e = exp(-|x|). That is 2 atanh(s) with
 * s = e / (2 + e) <= 1 / 3, by its Taylor series, so that nothing is lost where e is small. */
__device__ __forceinline__ float softplus(float x)
{
    const float atanh[] = {1.0f / 15, 1.0f / 13, 1.0f / 11, 1.0f / 9,
                           1.0f / 7,  1.0f / 5,  1.0f / 3,  1.0f};
    const float e = exponential(0.0f - magnitude(x));
    const float s = __fdiv_rn(e, 2.0f + e);
    return (x > 0.0f ? x : 0.0f) + (s + s) * polynomial(s * s, atanh);
}

__device__ __forceinline__ float activation(int kind, float x)
{
    switch (kind) {
    case SILU:
        return x * sigmoid(x);
    case GELU:
        return gelu(x);
    case GELU_TANH:
        return gelu_tanh(x);
    case RELU:
        return x < 0.0f ? 0.0f : x;
    case SIGMOID:
        return sigmoid(x);
    case TANH:
        return hyperbolic_tangent(x);
    case SOFTPLUS:
        return softplus(x);
    default:
        return x * sigmoid(1.702f * x);
    }
}

/* kind(a) (b + offset); where `limit` is not 0, a is at most that, and b is cut to -limit .. limit,
 * before that. */
__device__ __forceinline__ float gated(int kind, float a, float b, float limit, float offset)
{
    if (limit > 0.0f) {
        a = limit < a ? limit : a;
        b = limit < b ? limit : b;
        b = b < -limit ? -limit : b;
    }
    return activation(kind, a) * (offset != 0.0f ? b + offset : b);
}
