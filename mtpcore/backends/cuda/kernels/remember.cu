/* Store a row of each head at its place, of keys or of values, rounded to the memory's type.
 *
 * Places are `pitch` bytes apart, and the rows of this kind begin at byte `begin` of each. One warp
 * for 64 entries of a head. Grid: (rows, heads * 64-entry parts / 8 rounded up). Block: 256.
 */
#include "float16.cuh"
#include "quantise.cuh"
#include "visible.cuh"
#include "stored.cuh"

#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS)
    remember(const float *__restrict__ x, const int *__restrict__ seqs,
             const int *__restrict__ places, const int *__restrict__ tables, char *memory,
             long long begin, long long pitch, int n_entries, int n_heads, int width)
{
    const int lane = threadIdx.x & 31, n_parts = n_scales(width);
    const int unit = blockIdx.y * (THREADS / 32) + (threadIdx.x >> 5);
    if (unit >= n_heads * n_parts) /* a whole warp */
        return;
    const int head = unit / n_parts, part = unit % n_parts, t = blockIdx.x;
    const int *table = tables + (size_t)seqs[t] * n_entries;
    char *rows = memory + begin + slot_of_place(table, places[t]) * pitch;
    const float *from = x + ((size_t)t * n_heads + head) * width;

    float value[2];
    for (int i = 0; i < 2; i++) {
        const int at = part * CODES + 2 * lane + i;
        value[i] = at < width ? from[at] : 0.0f;
    }
    store_part(TYPE, rows, n_heads, width, head, part, value);
}
