#include "core/clock.h"

#include <windows.h>

/* Seconds and the rest are taken apart: their product with 10^9 may be too large for 64 bits. */
int64_t mtp_now_ns(void)
{
    LARGE_INTEGER ticks, a_second;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&a_second);
    const int64_t seconds = ticks.QuadPart / a_second.QuadPart;
    const int64_t rest = ticks.QuadPart % a_second.QuadPart;
    return seconds * 1000000000 + rest * 1000000000 / a_second.QuadPart;
}
