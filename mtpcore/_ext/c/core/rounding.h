/* How the calling thread rounds: to nearest and with subnormal numbers while our arithmetic runs,
 * whatever foreign libraries have switched on, and as before afterwards. */
#ifndef MTPCORE_ROUNDING_H
#define MTPCORE_ROUNDING_H

#if defined(__x86_64__)
#include <xmmintrin.h>

static inline unsigned mtp_round_to_nearest(void)
{
    const unsigned before = _mm_getcsr();
    _mm_setcsr(0x1f80); /* all exceptions masked, to nearest, no flush to zero */
    return before;
}

static inline void mtp_round_as(unsigned before) { _mm_setcsr(before); }
#elif defined(__aarch64__)
#include <stdint.h>

static inline void mtp_round_as(unsigned before)
{
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)before));
}

static inline unsigned mtp_round_to_nearest(void)
{
    uint64_t before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    mtp_round_as(0); /* to nearest, no flush to zero, NaNs keep their bits */
    return (unsigned)before;
}
#else
static inline unsigned mtp_round_to_nearest(void) { return 0; }

static inline void mtp_round_as(unsigned before) { (void)before; }
#endif

#endif
