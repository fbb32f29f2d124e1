#include "core/pages.h"

#include <stdlib.h>
#include <sys/mman.h>

void *mtp_aligned_new(size_t boundary, size_t bytes)
{
    void *memory = NULL;
    return posix_memalign(&memory, boundary, bytes) == 0 ? memory : NULL;
}

void mtp_aligned_free(void *memory) { free(memory); }

/* Apple's processors have none. */
void mtp_want_huge_pages(void *memory, size_t bytes) { (void)memory, (void)bytes; }

void mtp_give_back_pages(void *memory, size_t bytes)
{
    (void)madvise(memory, bytes, MADV_DONTNEED);
}
