/* Read memory as fast as a thread can: a line of each of several pages in turn.

   The hardware fetches ahead within pages that are read, so one page after the other leaves a third
   of the bandwidth unused (reading.py measures it). timing.py compiles this. */

#include <stddef.h>
#include <stdint.h>

enum { LINE = 64, PAGE = 4096 };

/* Touch every line of n_bytes, a line of each of so many pages in turn (what is left over is not
   read); return a sum, so that no compiler leaves reading out. */
int64_t read_lines(const char *from, size_t n_bytes, size_t pages) {
    int64_t sum = 0;
    for (size_t at = 0; at + pages * PAGE <= n_bytes; at += pages * PAGE)
        for (size_t line = 0; line < PAGE; line += LINE)
            for (size_t page = 0; page < pages; page++)
                sum += *(const int64_t *)(from + at + page * PAGE + line);
    return sum;
}
