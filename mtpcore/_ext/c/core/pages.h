/* Memory as each system deals in it: pages_linux.c, pages_darwin.c, pages_windows.c. */
#ifndef MTPCORE_PAGES_H
#define MTPCORE_PAGES_H

#include <stddef.h>

/* Memory on a boundary that is a power of two; NULL when there is none. */
void *mtp_aligned_new(size_t boundary, size_t bytes);
void mtp_aligned_free(void *memory);

/* Ask for huge pages for memory that begins and ends on boundaries of them, where a system has
 * them for the asking. */
enum { MTP_HUGE_PAGE = 2 * 1024 * 1024 };
void mtp_want_huge_pages(void *memory, size_t bytes);

/* Let the system reclaim the pages of a mapped file from a boundary of pages on, the last one as a
 * whole. Nobody writes to them, and what is read again is mapped again. */
void mtp_give_back_pages(void *memory, size_t bytes);

#endif
