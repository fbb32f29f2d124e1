/* Memory for weights and buffers: 64-byte aligned, in huge pages where it is large. */
#ifndef MTPCORE_MEMORY_H
#define MTPCORE_MEMORY_H

#include <stddef.h>

void *mtp_memory_new(size_t bytes); /* NULL when there is none; contents undefined */
void mtp_memory_free(void *memory);

/* The same, zeroed; what is never written takes no memory, however large the block. */
void *mtp_memory_zeros(size_t bytes);
void mtp_memory_free_zeros(void *memory);

#endif
