/* How many products of eight-bit numbers one and two threads form out of registers (AVX-512 VNNI).

   gcc -O2 -mavx512f -mavx512vnni -pthread -o peak benchmarks/peak.c && ./peak

   What a product of matrices could reach if it loaded, scaled and added nothing. Two threads that
   are far from twice as fast as one share a core. */

#include <immintrin.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#define ROUNDS 20000000L
#define CHAINS 12 /* more than a product's latency times what starts in a cycle */
#define PRODUCTS 64
#define STEP(sum) __asm__ volatile("vpdpbusd %1, %2, %0" : "+v"(sum) : "v"(codes), "v"(values));

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void *multiply(void *unused) {
    const __m512i values = _mm512_set1_epi8(3), codes = _mm512_set1_epi8(2);
    __m512i a = values, b = values, c = values, d = values, e = values, f = values;
    __m512i g = values, h = values, i = values, j = values, k = values, l = values;
    for (long round = 0; round < ROUNDS; round++) {
        STEP(a) STEP(b) STEP(c) STEP(d) STEP(e) STEP(f)
        STEP(g) STEP(h) STEP(i) STEP(j) STEP(k) STEP(l)
    }
    return unused;
}

int main(void) {
    const double work = 1e-9 * (double)ROUNDS * CHAINS * PRODUCTS;
    for (int run = 0; run < 5; run++) {
        double begin = seconds();
        multiply(NULL);
        const double alone = work / (seconds() - begin);
        pthread_t other;
        begin = seconds();
        pthread_create(&other, NULL, multiply, NULL);
        multiply(NULL);
        pthread_join(other, NULL);
        printf("one thread %.0f, two %.0f GMAC/s\n", alone, 2 * work / (seconds() - begin));
    }
}
