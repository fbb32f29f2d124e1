/* Memory for weights and buffers: 64-byte aligned, in huge pages where it is large. */
#ifndef MTPCORE_MEMORY_H
#define MTPCORE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

void *mtp_memory_new(size_t bytes); /* NULL when there is none; contents undefined */
void mtp_memory_free(void *memory);

/* The same, zeroed; what is never written takes no memory, however large the block. */
void *mtp_memory_zeros(size_t bytes);
void mtp_memory_free_zeros(void *memory);

/* With AddressSanitizer: let nobody touch the line after these bytes until their block is freed;
   nor the last line of each copy, where that comes after the bytes that all may use. */
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>

enum { MTP_HAS_ASAN = 1 };
static inline void mtp_poison_after(void *memory, size_t bytes)
{
    __asan_poison_memory_region((char *)memory + bytes, (bytes + 127) / 64 * 64 - bytes);
}
static inline void mtp_poison_after_copies(void *memory, size_t bytes, size_t each,
                                           int64_t n_copies)
{
    for (int64_t i = 1; i <= n_copies; i++) {
        const size_t end = (size_t)i * each, last = end < 64 ? 0 : end - 64;
        const size_t begin = last > bytes ? last : bytes;
        if (begin < end)
            __asan_poison_memory_region((char *)memory + begin, end - begin);
    }
}
#else
enum { MTP_HAS_ASAN = 0 };
static inline void mtp_poison_after(void *memory, size_t bytes)
{
    (void)memory;
    (void)bytes;
}
static inline void mtp_poison_after_copies(void *memory, size_t bytes, size_t each,
                                           int64_t n_copies)
{
    (void)memory;
    (void)bytes;
    (void)each;
    (void)n_copies;
}
#endif

#endif
