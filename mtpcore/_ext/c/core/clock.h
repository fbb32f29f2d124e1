/* A clock that only goes forward. */
#ifndef MTPCORE_CLOCK_H
#define MTPCORE_CLOCK_H

#include <stdint.h>

/* Nanoseconds since some moment in the past. */
int64_t mtp_now_ns(void);

#endif
