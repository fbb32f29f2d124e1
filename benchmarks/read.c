/* Read memory as fast as a thread can: a line of each of eight pages in turn.

   The hardware fetches ahead within pages that are read, so one page after the other leaves a third
   of the bandwidth unused (results/products.md). timing.py compiles this. */

#include <stddef.h>
#include <stdint.h>

enum { LINE = 64, PAGE = 4096, PAGES = 8 };

/* Touch every line of n_bytes (what is left of eight pages is not read); return a sum, so that no
   compiler leaves reading out. */
int64_t read_lines(const char *from, size_t n_bytes) {
    int64_t sum = 0;
    for (size_t window = 0; window + PAGES * PAGE <= n_bytes; window += PAGES * PAGE)
        for (size_t line = 0; line < PAGE; line += LINE)
            for (size_t page = 0; page < PAGES * PAGE; page += PAGE)
                sum += *(const int64_t *)(from + window + page + line);
    return sum;
}
