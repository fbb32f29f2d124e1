#include "core/memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/pages.h"

enum { LINE = 64, HUGE_PAGE = MTP_HUGE_PAGE };

void *mtp_memory_new(size_t bytes)
{
    const size_t alignment = bytes >= 2 * (size_t)HUGE_PAGE ? HUGE_PAGE : LINE;
    void *memory = mtp_aligned_new(alignment, bytes ? bytes : 1);
    if (memory != NULL && alignment == HUGE_PAGE) /* whole ones: another may own the last's rest */
        mtp_want_huge_pages(memory, bytes / HUGE_PAGE * HUGE_PAGE);
    return memory;
}

void mtp_memory_free(void *memory) { mtp_aligned_free(memory); }

/* Where the block begins stands just before the aligned memory; calloc leaves room for it. */
void *mtp_memory_zeros(size_t bytes)
{
    if (bytes > SIZE_MAX - 2 * LINE)
        return NULL;
    char *begin = calloc(1, bytes + 2 * LINE);
    if (begin == NULL)
        return NULL;
    char *memory = begin + 2 * LINE - (uintptr_t)begin % LINE;
    memcpy(memory - sizeof begin, &begin, sizeof begin);
    const size_t skipped = -(uintptr_t)memory % HUGE_PAGE;
    if (bytes >= skipped + HUGE_PAGE)
        mtp_want_huge_pages(memory + skipped, (bytes - skipped) / HUGE_PAGE * HUGE_PAGE);
    return memory;
}

void mtp_memory_free_zeros(void *memory)
{
    char *begin = NULL;
    if (memory != NULL)
        memcpy(&begin, (char *)memory - sizeof begin, sizeof begin);
    free(begin);
}
