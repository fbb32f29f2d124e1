#include "compare.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/cpu.h"
#include "core/float16.h"
#include "core/pool.h"

static uint64_t state = 1;
static int n_compared = 0, n_wrong = 0;

uint32_t random_word(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) << 1 ^ (uint32_t)(state >> 40);
}

float random_float(void)
{
    const float x = (float)(int32_t)random_word() * 0x1p-31f;
    return random_word() % 64 == 0 ? x * 50 : x;
}

float random_bits(void) { return mtp_float_from_bits(random_word()); }

/* What is being compared, for a signal that ends the program. */
static char now[200];

static void name_and_end(int number)
{
    fprintf(stderr, "signal %d: %s\n", number, now);
    _Exit(1);
}

static void make_nans_one(uint32_t *words, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((words[i] & 0x7fffffffu) > 0x7f800000u)
            words[i] = 0x7fc00000u;
}

static void compute_on(int isa, const char *what, compute *f, const void *of,
                       unsigned char *results, size_t n_bytes, int nans)
{
    snprintf(now, sizeof now, "%s: %s", mtp_isa_name(isa), what);
    if (mtp_isa_use(isa) != 0)
        abort();
    memset(results, 0xa5, n_bytes);
    f(of, results);
    if (nans == ONE_NAN)
        make_nans_one((uint32_t *)results, n_bytes / 4);
}

void compare(const char *what, compute *f, const void *of, size_t n_bytes, int nans)
{
    unsigned char *wanted = zeros(n_bytes, LINE), *got = zeros(n_bytes, LINE);
    compute_on(MTP_ISA_BASE, what, f, of, wanted, n_bytes, nans);
    for (int isa = MTP_ISA_BASE + 1; isa < MTP_ISA_COUNT; isa++) {
        if (!mtp_isa_supported(isa))
            continue;
        compute_on(isa, what, f, of, got, n_bytes, nans);
        n_compared++;
        if (memcmp(wanted, got, n_bytes) == 0)
            continue;
        size_t at = 0;
        while (wanted[at] == got[at])
            at++;
        uint32_t words[2];
        memcpy(&words[0], wanted + at / 4 * 4, 4);
        memcpy(&words[1], got + at / 4 * 4, 4);
        printf("%s: %s: word %zu: %08x, portable C has %08x\n", mtp_isa_name(isa), what, at / 4,
               words[1], words[0]);
        n_wrong++;
    }
    release(wanted);
    release(got);
}

void check(const char *what, double of, int is_right)
{
    if (is_right)
        return;
    printf("%s of %a is wrong\n", what, of);
    n_wrong++;
}

static void compare_all(void *argument, int thread, int n_threads)
{
    (void)argument, (void)thread, (void)n_threads;
    compare_matmuls();
    compare_choices();
    compare_encoded();
    compare_functions();
    compare_operations();
    compare_recurrent();
}

/* Arguments name instruction sets that the machine must have. */
int main(int n_arguments, char **arguments)
{
    for (int i = 1; i < n_arguments; i++)
        if (!mtp_isa_supported(mtp_isa_named(arguments[i]))) {
            printf("no instruction set %s here\n", arguments[i]);
            return 2;
        }
    signal(SIGSEGV, name_and_end); /* beside a buffer */
#if defined(SIGTRAP)
    signal(SIGTRAP, name_and_end); /* an overflow, where these are looked for */
#endif
    check_memory();
    check_threads();
    mtp_run_alone(compare_all, NULL); /* rounds as the threads of a run do */
    printf("%d comparisons, %d wrong\n", n_compared, n_wrong);
    return n_wrong != 0 || n_compared == 0;
}
