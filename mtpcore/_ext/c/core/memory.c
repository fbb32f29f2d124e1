#define _DEFAULT_SOURCE
#include "core/memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

enum { LINE = 64, HUGE_PAGE = 2 * 1024 * 1024 };

void *mtp_memory_new(size_t bytes)
{
    const size_t alignment = bytes >= 2 * (size_t)HUGE_PAGE ? HUGE_PAGE : LINE;
    void *memory = NULL;
    if (posix_memalign(&memory, alignment, bytes ? bytes : 1) != 0)
        return NULL;
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (alignment == HUGE_PAGE) /* whole pages only: a neighbour may own the rest of the last */
        (void)madvise(memory, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
#endif
    return memory;
}

void mtp_memory_free(void *memory) { free(memory); }

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
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const size_t skipped = -(uintptr_t)memory % HUGE_PAGE;
    if (bytes >= skipped + HUGE_PAGE)
        (void)madvise(memory + skipped, (bytes - skipped) / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
#endif
    return memory;
}

void mtp_memory_free_zeros(void *memory)
{
    char *begin = NULL;
    if (memory != NULL)
        memcpy(&begin, (char *)memory - sizeof begin, sizeof begin);
    free(begin);
}
