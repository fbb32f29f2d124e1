/* The sums of one range of what a row sees, for query heads that share a key head: the largest score,
 * the sum of exp(score - largest), and the sum of exp(score - largest) v.
 *
 * The order of sums, and the bits, are those of the CPU's kernels: a page of 64 numbers is taken in
 * after the other. A score is one chain over the key's width, times the scale, plus a bias by
 * distance; CODED queries become codes, too, and a chain's links are blocks of 64. A page's weights
 * are summed in sixteen lanes (number p in lane p mod 16) and a tree, and values number after number.
 * A range is all that one CTA knows, and a row's sums depend on the row alone; merge.cu takes ranges
 * together. One warp for the scores of a head, a lane for two numbers; one thread for COLUMNS
 * columns of PER_GROUP heads' values.
 * Grid: (rows * key heads * query heads of each / 8 rounded up, ranges). Block: 256.
 */
#include "float16.cuh"
#include "functions.cuh"
#include "quantise.cuh"
#include "visible.cuh"
#include "stored.cuh"

#define THREADS 256
#define HEADS 8
#define PER_GROUP (HEADS * V_THREADS / THREADS)
#define NOWHERE (~(size_t)0)
#define EVERY_LANE 0xffffffffu

static __device__ __forceinline__ float least() { return __uint_as_float(0xff800000u); }

/* A tile of keys, and of queries: 32 entries, or the codes of 64. */
#if TYPE == CODED
#define WIDTH 64
typedef unsigned Word;
#define N_WORDS 16
#else
#define WIDTH 32
typedef float Word;
#define N_WORDS 32
#endif

struct Tile {
    Word keys[PAGE][N_WORDS + 1], queries[HEADS][N_WORDS];
};

/* Entries `from` .. of the keys of a page; zeros where there are none. */
static __device__ __forceinline__ void load_keys(Tile &tile, const char *memory, const size_t *at,
                                                 int head, int width, int from)
{
    for (int i = threadIdx.x; i < PAGE * N_WORDS; i += THREADS) {
        const int p = i / N_WORDS, word = i % N_WORDS;
        Word value = 0;
        if (at[p] != NOWHERE && from + word * (WIDTH / N_WORDS) < n_kept(width)) {
            const Entry *row = row_of_head(memory + at[p], width, head) + from;
#if TYPE == CODED
            value = ((const unsigned *)row)[word];
#else
            value = entry_of(row[word]);
#endif
        }
        tile.keys[p][word] = value;
    }
}

/* Entries `from` .. of this warp's query; returns the scale of its codes. */
static __device__ __forceinline__ float load_query(Tile &tile, const float *query, int width,
                                                   int from)
{
    const int lane = threadIdx.x & 31;
    Word *row = tile.queries[threadIdx.x >> 5];
#if TYPE == CODED
    float value[2];
    int code[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        value[i] = from + 2 * lane + i < width ? query[from + 2 * lane + i] : 0.0f;
    const float scale = quantise_block(value, code);
#pragma unroll
    for (int i = 0; i < 2; i++)
        ((signed char *)row)[2 * lane + i] = (signed char)code[i];
    return scale;
#else
    row[lane] = from + lane < width ? query[from + lane] : 0.0f;
    return 1.0f;
#endif
}

/* The sum of a page's 64 weights, two in each lane. */
static __device__ __forceinline__ float sum_of_page(float first, float second)
{
    const bool is_upper = threadIdx.x & 16;
    const float first_of_other = __shfl_xor_sync(EVERY_LANE, first, 16);
    const float second_of_other = __shfl_xor_sync(EVERY_LANE, second, 16);
    float sum = is_upper ? first_of_other + first : first + first_of_other;
    sum += is_upper ? second_of_other : second;
    sum += is_upper ? second : second_of_other;
    for (int step = 8; step > 0; step >>= 1)
        sum += __shfl_xor_sync(EVERY_LANE, sum, step);
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    attention(const float *__restrict__ q, const int *__restrict__ seqs,
              const int *__restrict__ places, const int *__restrict__ parents,
              const Visible *__restrict__ visible_of_rows, const int *__restrict__ tables,
              const char *__restrict__ keys, const float *__restrict__ bias,
              float *__restrict__ sums, long long pitch, long long v_begin, int n_entries, int first_row, int n_ranges, int n_key_heads,
              int n_shared, int k_width, int v_width, int kept_width, int furthest, float scale)
{
    __shared__ Tile tile;
    __shared__ size_t at[PAGE];
    __shared__ float weights[HEADS][PAGE], factors[HEADS];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int n_tiles = (n_shared + HEADS - 1) / HEADS, n_heads = n_key_heads * n_shared;
    const int head_tile = blockIdx.x % n_tiles, key_head = blockIdx.x / n_tiles % n_key_heads;
    const int row = blockIdx.x / n_tiles / n_key_heads, t = first_row + row;

    const Visible visible = visible_of_rows[t];
    const int first = (visible.begin / RANGE + (int)blockIdx.y) * RANGE;
    const int begin = first > visible.begin ? first : visible.begin;
    const int end = first + RANGE < visible.end ? first + RANGE : visible.end;
    if (begin >= end) /* the whole CTA */
        return;
    const int *table = tables + (size_t)seqs[t] * n_entries;
    const int n_own = n_shared - head_tile * HEADS < HEADS ? n_shared - head_tile * HEADS : HEADS;
    const int first_head = key_head * n_shared + head_tile * HEADS;
    const int head = first_head + (warp < n_own ? warp : 0);
    const char *values = keys + v_begin;
    const float *query = q + ((size_t)t * n_heads + head) * k_width;

    const int group = threadIdx.x / V_THREADS, column = threadIdx.x % V_THREADS;
    float out[PER_GROUP][COLUMNS] = {};
    float top = least(), total = 0.0f;
    for (int page = begin / PAGE; page * PAGE < end; page++) {
        __syncthreads(); /* the page before was read */
        if (threadIdx.x < PAGE) {
            const int number = page * PAGE + threadIdx.x;
            at[threadIdx.x] =
                number < begin || number >= end
                    ? NOWHERE
                    : slot_of_number(table, places, parents, visible, t, number) * pitch;
        }
        __syncthreads();

        float dots[2] = {};
        for (int from = 0; from < k_width; from += WIDTH) {
            const float query_scale = load_query(tile, query, k_width, from);
            load_keys(tile, keys, at, key_head, k_width, from);
            __syncthreads();
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int p = lane + 32 * i;
#if TYPE == CODED
                int whole = 0;
                for (int word = 0; word < N_WORDS; word++)
                    whole = __dp4a((int)tile.keys[p][word], (int)tile.queries[warp][word], whole);
                if (at[p] != NOWHERE) {
                    const float *scales =
                        scales_of_head(keys + at[p], n_key_heads, k_width, key_head);
                    dots[i] = fmaf((float)whole, scales[from / CODES] * query_scale, dots[i]);
                }
#else
                const int n = k_width - from < WIDTH ? k_width - from : WIDTH;
                for (int word = 0; word < n; word++)
                    dots[i] = fmaf(tile.keys[p][word], tile.queries[warp][word], dots[i]);
#endif
            }
            __syncthreads();
        }

        float scores[2], highest = least();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int p = lane + 32 * i;
            scores[i] = dots[i] * scale;
            if (bias) {
                int distance = page * PAGE + p - visible.own;
                distance = distance < -furthest ? -furthest : distance;
                distance = distance > furthest ? furthest : distance;
                scores[i] += bias[(size_t)(distance + furthest) * n_heads + head];
            }
            scores[i] = at[p] == NOWHERE ? least() : scores[i];
            highest = scores[i] > highest ? scores[i] : highest; /* never a NaN */
        }
        for (int step = 16; step > 0; step >>= 1) {
            const float other = __shfl_xor_sync(EVERY_LANE, highest, step);
            highest = other > highest ? other : highest;
        }
        float factor = 1.0f;
        if (highest > top) {
            factor = exponential(top - highest);
            total *= factor;
            top = highest;
        }
#pragma unroll
        for (int i = 0; i < 2; i++)
            weights[warp][lane + 32 * i] = scores[i] = exponential(scores[i] - top);
        total += sum_of_page(scores[0], scores[1]);
        if (lane == 0)
            factors[warp] = factor;
        __syncthreads();

#pragma unroll
        for (int i = 0; i < PER_GROUP; i++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                out[i][c] *= factors[group * PER_GROUP + i];
        const int last = end - page * PAGE < PAGE ? end - page * PAGE : PAGE;
        for (int p = begin > page * PAGE ? begin - page * PAGE : 0; p < last; p++) {
            const Entry *value = row_of_head(values + at[p], kept_width, key_head);
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                const int d = column + c * V_THREADS;
                if (d >= v_width)
                    continue;
                const float entry = entry_of(value[d]);
#if TYPE == CODED
                const float value_scale =
                    scales_of_head(values + at[p], n_key_heads, kept_width, key_head)[d / CODES];
#else
                const float value_scale = 1.0f;
#endif
#pragma unroll
                for (int i = 0; i < PER_GROUP; i++) {
                    const float weight = weights[group * PER_GROUP + i][p];
                    out[i][c] = fmaf(weight * value_scale, entry, out[i][c]);
                }
            }
        }
    }

    const size_t pitch_of_head = (size_t)n_ranges * (v_width + 2);
    float *own = sums + ((size_t)row * n_heads + first_head) * pitch_of_head +
                 (size_t)blockIdx.y * (v_width + 2);
#pragma unroll
    for (int i = 0; i < PER_GROUP; i++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            const int d = column + c * V_THREADS, number = group * PER_GROUP + i;
            if (d < v_width && number < n_own)
                own[number * pitch_of_head + d] = out[i][c];
        }
    if (lane == 0 && warp < n_own) {
        own[warp * pitch_of_head + v_width] = top;
        own[warp * pitch_of_head + v_width + 1] = total;
    }
}
