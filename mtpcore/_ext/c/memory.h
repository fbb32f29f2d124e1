/* Memory for weights and buffers: 64-byte aligned, in huge pages where it is large. */
#ifndef MTPCORE_MEMORY_H
#define MTPCORE_MEMORY_H

#include <stddef.h>

void *mtp_memory_new(size_t bytes); /* NULL when there is none; contents undefined */
void mtp_memory_free(void *memory);

/* The same, zeroed; what is never written takes no memory, however large the block. */
void *mtp_memory_zeros(size_t bytes);
void mtp_memory_free_zeros(void *memory);

/* With AddressSanitizer: let nobody touch these bytes until the block is freed. */
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>

enum { MTP_IS_WATCHED = 1 };
static inline void mtp_poison(void *memory, size_t bytes)
{
    __asan_poison_memory_region(memory, bytes);
}
#else
enum { MTP_IS_WATCHED = 0 };
static inline void mtp_poison(void *memory, size_t bytes)
{
    (void)memory;
    (void)bytes;
}
#endif

#endif
