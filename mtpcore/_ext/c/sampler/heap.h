/* A heap of rows: the largest key first, of equal keys the lowest row. */
#ifndef MTPCORE_SAMPLER_HEAP_H
#define MTPCORE_SAMPLER_HEAP_H

#include <stdint.h>

static inline int comes_before(const float *keys, int32_t a, int32_t b)
{
    return keys[a] > keys[b] || (keys[a] == keys[b] && a < b);
}

static inline void sift_down(int32_t *heap, int64_t n, int64_t hole, const float *keys)
{
    const int32_t moved = heap[hole];
    for (int64_t child; (child = 2 * hole + 1) < n; hole = child) {
        if (child + 1 < n && comes_before(keys, heap[child + 1], heap[child]))
            child++;
        if (!comes_before(keys, heap[child], moved))
            break;
        heap[hole] = heap[child];
    }
    heap[hole] = moved;
}

static inline void heapify(int32_t *heap, int64_t n, const float *keys)
{
    for (int64_t i = n / 2; i-- > 0;)
        sift_down(heap, n, i, keys);
}

/* Move the first of n to heap[n - 1] and return it. */
static inline int32_t pop(int32_t *heap, int64_t n, const float *keys)
{
    const int32_t first = heap[0];
    heap[0] = heap[n - 1];
    sift_down(heap, n - 1, 0, keys);
    heap[n - 1] = first;
    return first;
}

#endif
