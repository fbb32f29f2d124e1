/* How a place keeps the rows of its heads in a layer of memory: of type F32 or F16, or CODED, as int8
 * with a float scale for every 64 entries. Codes of all heads, whole fours each, come before the scales
 * of all heads. What reads them knows its TYPE when it is compiled.
 */
#define F32 0
#define F16 1
#define CODED 2
#define CODES 64

/* Entries of a head's row in memory, and its scales. */
__device__ __forceinline__ int n_kept(int type, int width)
{
    return type == CODED ? (width + 3) / 4 * 4 : width;
}

__device__ __forceinline__ int n_scales(int width) { return (width + CODES - 1) / CODES; }

#ifdef TYPE
#if TYPE == F32
typedef float Entry;
__device__ __forceinline__ float entry_of(Entry value) { return value; }
#elif TYPE == F16
typedef unsigned short Entry;
__device__ __forceinline__ float entry_of(Entry value) { return widen(value); }
#else
typedef signed char Entry;
__device__ __forceinline__ float entry_of(Entry value) { return (float)value; }
#endif

__device__ __forceinline__ int n_kept(int width) { return n_kept(TYPE, width); }
#endif

/* Stores entries 64 part .. of a head's row, two in each lane of a warp, rounded to the memory's type;
 * what is past the row's end must be zeros. */
__device__ __forceinline__ void store_part(int type, char *rows, int n_heads, int width, int head,
                                           int part, const float (&value)[2])
{
    const int first = part * CODES + 2 * (threadIdx.x & 31), n = n_kept(type, width);
    const size_t begin = (size_t)head * n;
    if (type == CODED) {
        int code[2];
        const float scale = quantise_block(value, code);
        float *scales = (float *)(rows + (size_t)n_heads * n) + (size_t)head * n_scales(width);
        for (int i = 0; i < 2; i++)
            if (first + i < n)
                rows[begin + first + i] = (char)code[i];
        if ((threadIdx.x & 31) == 0)
            scales[part] = scale;
        return;
    }
    for (int i = 0; i < 2; i++) {
        const size_t at = begin + first + i;
        if (first + i >= width)
            break;
        if (type == F16)
            ((unsigned short *)rows)[at] = narrow(value[i]);
        else
            ((float *)rows)[at] = value[i];
    }
}
