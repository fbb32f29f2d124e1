/* exp, log and what is made of them, one table for each instruction set that has its own lanes. */
#ifndef MTPCORE_TESTS_FUNCTIONS_H
#define MTPCORE_TESTS_FUNCTIONS_H

#include <stdint.h>

typedef struct {
    void (*exp)(const float *x, float *y, int64_t n); /* n: a multiple of the lanes */
    void (*activation)(int64_t kind, const float *x, float *y, int64_t n);
    void (*exp_double)(const double *restrict x, double *restrict y, int64_t n);
    void (*log_double)(const double *restrict x, double *restrict y, int64_t n);
} functions;

extern const functions functions_base;
#if defined(__x86_64__)
extern const functions functions_avx2, functions_avx512;
#elif defined(__aarch64__)
extern const functions functions_neon;
#endif

#endif
