#include "core/pages.h"

#include <malloc.h>
#include <windows.h>

void *mtp_aligned_new(size_t boundary, size_t bytes) { return _aligned_malloc(bytes, boundary); }

void mtp_aligned_free(void *memory) { _aligned_free(memory); }

/* Large pages take a right that few users have. */
void mtp_want_huge_pages(void *memory, size_t bytes) { (void)memory, (void)bytes; }

/* Pages that are unlocked without having been locked leave the working set; the call then says that
 * it failed. */
void mtp_give_back_pages(void *memory, size_t bytes) { (void)VirtualUnlock(memory, bytes); }
