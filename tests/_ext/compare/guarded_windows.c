#include <stdlib.h>
#include <string.h>
#include <windows.h>

#include "compare.h"

void *zeros(size_t n_bytes, int alignment)
{
    const size_t page = 4096;
    const size_t aligned =
        (n_bytes + (size_t)alignment - 1) / (size_t)alignment * (size_t)alignment;
    const size_t n_pages = (sizeof(char *) + aligned + page - 1) / page;
    char *begin =
        VirtualAlloc(NULL, (n_pages + 1) * page, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
    DWORD before;
    if (begin == NULL || !VirtualProtect(begin + n_pages * page, page, PAGE_NOACCESS, &before))
        abort();
    char *memory = begin + n_pages * page - aligned;
    memcpy(memory - sizeof begin, &begin, sizeof begin);
    return memory;
}

void release(void *memory)
{
    char *begin;
    memcpy(&begin, (char *)memory - sizeof begin, sizeof begin);
    VirtualFree(begin, 0, MEM_RELEASE);
}
