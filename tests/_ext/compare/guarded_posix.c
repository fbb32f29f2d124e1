#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "compare.h"

/* What was mapped is noted right before what is handed out. */
typedef struct {
    void *begin;
    size_t n_bytes;
} mapped;

void *zeros(size_t n_bytes, int alignment)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t aligned =
        (n_bytes + (size_t)alignment - 1) / (size_t)alignment * (size_t)alignment;
    const size_t n_pages = (sizeof(mapped) + aligned + page - 1) / page;
    const size_t whole = (n_pages + 1) * page;
    char *begin = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (begin == MAP_FAILED || mprotect(begin + n_pages * page, page, PROT_NONE) != 0)
        abort();
    char *memory = begin + n_pages * page - aligned;
    const mapped all = {begin, whole};
    memcpy(memory - sizeof all, &all, sizeof all);
    return memory;
}

void release(void *memory)
{
    mapped all;
    memcpy(&all, (char *)memory - sizeof all, sizeof all);
    munmap(all.begin, all.n_bytes);
}
