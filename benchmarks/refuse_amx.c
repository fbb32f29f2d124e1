/* Refuse the AMX unit to a program, as a system without it would.

   gcc -shared -fPIC -O1 -o refuse_amx.so benchmarks/refuse_amx.c
   LD_PRELOAD=./refuse_amx.so python benchmarks/vs_llama_cpp.py

   llama-cpp-python may have been built with an AMX path that crashes (versus/peer.py): ggml asks
   for the unit with arch_prctl through syscall(), and takes AVX-512 where the answer is no. */

#include <errno.h>
#include <stdarg.h>
#include <sys/syscall.h>

#define ARCH_REQ_XCOMP_PERM 0x1023

long syscall(long number, ...) {
    va_list arguments;
    va_start(arguments, number);
    long first = va_arg(arguments, long), second = va_arg(arguments, long);
    long third = va_arg(arguments, long);
    register long fourth __asm__("r10") = va_arg(arguments, long);
    register long fifth __asm__("r8") = va_arg(arguments, long);
    register long sixth __asm__("r9") = va_arg(arguments, long);
    va_end(arguments);
    if (number == SYS_arch_prctl && first == ARCH_REQ_XCOMP_PERM) {
        errno = EPERM;
        return -1;
    }
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(first), "S"(second), "d"(third), "r"(fourth), "r"(fifth),
                       "r"(sixth)
                     : "rcx", "r11", "memory");
    if (result < 0 && result > -4096) {
        errno = (int) -result;
        return -1;
    }
    return result;
}
