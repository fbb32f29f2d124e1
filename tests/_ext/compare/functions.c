/* exp and log over every exponent, against portable C bit for bit and against libm's doubles. */
#include "functions.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "compare.h"
#include "core/cpu.h"
#include "core/lanes_math.h"
#include "core/logarithm.h"

enum { EXPONENTS = 256, MANTISSAS = 64, STEPS = 1 << 16, ACTIVATIONS = MTP_GELU_SIGMOID + 1 };
enum { FLOATS = 2 * EXPONENTS * MANTISSAS + STEPS };
enum { DOUBLE_EXPONENTS = 2048, DOUBLE_MANTISSAS = 32 };
enum { DOUBLES = DOUBLE_EXPONENTS * DOUBLE_MANTISSAS + STEPS };

typedef struct {
    const float *x;
    int64_t kind; /* of an activation; ACTIVATIONS is exp */
} sweep;

static const functions *in_use(void)
{
#if defined(__x86_64__)
    static const functions *const table[MTP_ISA_COUNT] = {[MTP_ISA_BASE] = &functions_base,
                                                          [MTP_ISA_AVX2] = &functions_avx2,
                                                          [MTP_ISA_AVXVNNI] = &functions_avx2,
                                                          [MTP_ISA_AVX512] = &functions_avx512,
                                                          [MTP_ISA_AMX] = &functions_avx512};
    return table[mtp_isa()];
#elif defined(__aarch64__)
    return mtp_isa() >= MTP_ISA_NEON ? &functions_neon : &functions_base;
#else
    return &functions_base;
#endif
}

static void sweep_floats(const void *of, void *results)
{
    const sweep *s = of;
    if (s->kind == ACTIVATIONS)
        in_use()->exp(s->x, results, FLOATS);
    else
        in_use()->activation(s->kind, s->x, results, FLOATS);
}

static void sweep_exp(const void *of, void *results) { in_use()->exp_double(of, results, DOUBLES); }

static void sweep_log(const void *of, void *results) { in_use()->log_double(of, results, DOUBLES); }

/* 0, 1, the largest there is, and others. */
static uint64_t mantissa(int i, int bits)
{
    const uint64_t all = ((uint64_t)1 << bits) - 1;
    const uint64_t other = (uint64_t)random_word() << 32 | random_word();
    return i < 2 ? (uint64_t)i : i == 2 ? all : other & all;
}

/* Every sign and exponent, so zeros, subnormal numbers, infinities and NaNs, too; then even steps over
 * what exp takes to numbers. */
static void fill_floats(float *x)
{
    for (uint32_t exponent = 0; exponent < 2 * EXPONENTS; exponent++)
        for (int i = 0; i < MANTISSAS; i++)
            *x++ = mtp_float_from_bits(exponent << 23 | (uint32_t)mantissa(i, 23));
    for (int i = 0; i < STEPS; i++)
        *x++ = 180.0f * (float)i / STEPS - 90.0f;
}

/* Likewise, without a sign; then values nearer and nearer to 1. */
static void fill_for_log(double *x)
{
    for (uint64_t exponent = 0; exponent < DOUBLE_EXPONENTS; exponent++)
        for (int i = 0; i < DOUBLE_MANTISSAS; i++)
            *x++ = mtp_bits_double(exponent << 52 | mantissa(i, 52));
    for (int i = 1; i <= STEPS; i++)
        *x++ = 1 + (i % 2 ? 1 : -1) * (double)i / STEPS / (1 << i % 20);
}

/* Where exp is defined: every exponent below 2^9 with both signs, then even steps. */
static void fill_for_exp(double *x)
{
    for (uint64_t exponent = 0; exponent < DOUBLE_EXPONENTS; exponent++)
        for (int i = 0; i < DOUBLE_MANTISSAS; i++) {
            const uint64_t size = exponent < 1023 + 9 ? exponent : exponent % (1023 + 9);
            *x++ = mtp_bits_double((uint64_t)(i % 2) << 63 | size << 52 | mantissa(i, 52));
        }
    for (int i = 0; i < STEPS; i++)
        *x++ = 1399.0 * i / STEPS - 699.5;
}

/* Whether a result is within so many units in the last place of what is wanted, a finite number. */
static int is_near(float got, double wanted, double units)
{
    const float size = fabsf((float)wanted);
    return fabs((double)got - wanted) <= units * ((double)nextafterf(size, INFINITY) - size);
}

static int is_near_double(double got, double wanted, double units)
{
    const double size = fabs(wanted);
    return fabs(got - wanted) <= units * (nextafter(size, INFINITY) - size);
}

static int exp_is_right(float x, float y)
{
    if (isnan(x))
        return isnan(y);
    if (x < -87.3f)
        return y == 0;
    if (x > 88.37f)
        return isinf(y) && y > 0;
    return is_near(y, exp(x), 1.5);
}

/* As exp is 0 below -87.3, so is this. */
static int softplus_is_right(float x, float y)
{
    if (isnan(x) || isinf(x))
        return isnan(x) ? isnan(y) : y == (x > 0 ? x : 0);
    return x < -87.3f ? y == 0 : is_near(y, x > 0 ? x + log1p(exp(-(double)x)) : log1p(exp(x)), 4);
}

static int log_is_right(double x, double y)
{
    return !isnormal(x) || is_near_double(y, log(x), 3.5); /* libm's error, too */
}

static int exp_double_is_right(double x, double y) { return is_near_double(y, exp(x), 3.5); }

static void check_floats(const char *what, const sweep *s, int (*is_right)(float, float))
{
    float *y = zeros(FLOATS * sizeof *y, LINE);
    mtp_isa_use(MTP_ISA_BASE);
    sweep_floats(s, y);
    for (int i = 0; i < FLOATS; i++)
        check(what, s->x[i], is_right(s->x[i], y[i]));
    release(y);
}

static void check_doubles(const char *what, compute *f, const double *x,
                          int (*is_right)(double, double))
{
    double *y = zeros(DOUBLES * sizeof *y, LINE);
    mtp_isa_use(MTP_ISA_BASE);
    f(x, y);
    for (int i = 0; i < DOUBLES; i++)
        check(what, x[i], is_right(x[i], y[i]));
    release(y);
}

void compare_functions(void)
{
    float *floats = zeros(FLOATS * sizeof *floats, LINE);
    double *doubles = zeros(DOUBLES * sizeof *doubles, LINE);
    sweep s = {floats, 0};
    fill_floats(floats);
    for (; s.kind <= ACTIVATIONS; s.kind++) {
        char what[50];
        snprintf(what, sizeof what,
                 s.kind < ACTIVATIONS ? "sweep of activation %d" : "sweep of exp", (int)s.kind);
        compare(what, sweep_floats, &s, FLOATS * sizeof *floats, ONE_NAN);
    }
    s.kind = ACTIVATIONS;
    check_floats("exp", &s, exp_is_right);
    s.kind = MTP_SOFTPLUS;
    check_floats("softplus", &s, softplus_is_right);
    fill_for_exp(doubles);
    compare("sweep of exp in double", sweep_exp, doubles, DOUBLES * sizeof *doubles, EVERY_BIT);
    check_doubles("exp in double", sweep_exp, doubles, exp_double_is_right);
    fill_for_log(doubles);
    compare("sweep of log in double", sweep_log, doubles, DOUBLES * sizeof *doubles, EVERY_BIT);
    check_doubles("log in double", sweep_log, doubles, log_is_right);
    release(floats);
    release(doubles);
}
