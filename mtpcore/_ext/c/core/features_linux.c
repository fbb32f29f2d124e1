#define _DEFAULT_SOURCE /* syscall */
#include "core/features.h"

#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>

int mtp_may_use_tiles(void)
{
    enum { ASK_FOR_STATE = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM */
    return syscall(SYS_arch_prctl, ASK_FOR_STATE, TILE_DATA) == 0;
}
#else
int mtp_may_use_tiles(void) { return 0; }
#endif

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>

int mtp_has_dot_products(void)
{
    const unsigned long wanted_bits = HWCAP_CRC32 | HWCAP_ATOMICS | HWCAP_ASIMDRDM | HWCAP_ASIMDDP;
    return (getauxval(AT_HWCAP) & wanted_bits) == wanted_bits;
}

int mtp_has_matrix_products(void)
{
    const unsigned long i8mm = 1ul << 13; /* HWCAP2_I8MM, which older headers lack */
    return (getauxval(AT_HWCAP2) & i8mm) != 0;
}
#else
int mtp_has_dot_products(void) { return 0; }

int mtp_has_matrix_products(void) { return 0; }
#endif
