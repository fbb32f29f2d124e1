/* How a place keeps the rows of its heads in a layer of memory: of TYPE F32 or F16, or CODED, as
 * int8 with a float scale for every 64 entries. Codes of all heads, whole fours each, come before
 * the scales of all heads.
 */
#define F32 0
#define F16 1
#define CODED 2
#define CODES 64

#if TYPE == F32
typedef float Entry;
__device__ __forceinline__ float entry_of(Entry value) { return value; }
__device__ __forceinline__ Entry entry_from(float value) { return value; }
#elif TYPE == F16
typedef unsigned short Entry;
__device__ __forceinline__ float entry_of(Entry value) { return widen(value); }
__device__ __forceinline__ Entry entry_from(float value) { return narrow(value); }
#else
typedef signed char Entry;
__device__ __forceinline__ float entry_of(Entry value) { return (float)value; }
#endif

/* Entries of a head's row in memory. */
__device__ __forceinline__ int n_kept(int width)
{
    return TYPE == CODED ? (width + 3) / 4 * 4 : width;
}

__device__ __forceinline__ int n_scales(int width) { return (width + CODES - 1) / CODES; }

/* A head's row among those that begin at `rows`, and its scales. */
__device__ __forceinline__ const Entry *row_of_head(const char *rows, int width, int head)
{
    return (const Entry *)rows + (size_t)head * n_kept(width);
}

__device__ __forceinline__ const float *scales_of_head(const char *rows, int n_heads, int width,
                                                       int head)
{
    return (const float *)(rows + (size_t)n_heads * n_kept(width)) + (size_t)head * n_scales(width);
}

/* Stores entries 64 part .. of a head's row, two in each lane of a warp, rounded to the memory's type;
 * what is behind the row's end must be zeros. */
__device__ __forceinline__ void store_part(char *rows, int n_heads, int width, int head, int part,
                                           const float (&value)[2])
{
    const int lane = threadIdx.x & 31;
    Entry *row = (Entry *)row_of_head(rows, width, head);
#if TYPE == CODED
    int code[2];
    const float scale = quantise_block(value, code);
    for (int i = 0; i < 2; i++) {
        const int at = part * CODES + 2 * lane + i;
        if (at < n_kept(width))
            row[at] = (signed char)code[i];
    }
    if (lane == 0)
        ((float *)scales_of_head(rows, n_heads, width, head))[part] = scale;
#else
    for (int i = 0; i < 2; i++) {
        const int at = part * CODES + 2 * lane + i;
        if (at < width)
            row[at] = entry_from(value[i]);
    }
#endif
}
