/* The sums of one range of what rows see, for query heads that share a key head: the largest score,
 * the sum of exp(score - largest), and the sum of exp(score - largest) v.
 *
 * The order of sums is that of the CPU's kernels, but that their ranges are longer: a page of 64
 * numbers is taken in after the other. A score is one chain over the key's width, times the scale,
 * plus a bias by distance; CODED queries become codes, too, and a chain's links are blocks of 64. A
 * page's weights are summed in sixteen lanes (number p in lane p mod 16) and a tree, and values number
 * after number. merge.cu takes ranges together.
 *
 * A CTA takes a tile: up to QUERIES queries, which are heads of consecutive rows of one sequence, and
 * reads each key and each value once for all of them. A query takes in what its own row sees and
 * skips the rest, so that its sums depend on its row alone, whatever the tile. What follows `base` in
 * a tree is another place for each row, and read row by row.
 * In a step, all threads compute scores of 256 / n_sharing keys, a thread those of one key with up
 * to EACH queries; then a warp takes the weights of a query at a time; then V_THREADS threads, of
 * COLUMNS columns each, take values in, which all threads have loaded.
 * Grid: (tiles of rows * takers * tiles of heads * key heads, ranges). Block: 256.
 */
#include "float16.cuh"
#include "functions.cuh"
#include "quantise.cuh"
#include "visible.cuh"
#include "stored.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)
#define EACH 8 /* queries of a thread that computes scores */
#define GROUPS (THREADS / V_THREADS)
#define PER_GROUP (QUERIES / GROUPS)
#define MOST_ROWS 32
#define MOST_PAGES (THREADS / PAGE)
#define MOST_WEIGHTS (THREADS * (EACH + 4))
#define NOWHERE (-1)
#define UNSEEN (-1.0f) /* no weight is negative */
#define EVERY_LANE 0xffffffffu

static __device__ __forceinline__ float least() { return __uint_as_float(0xff800000u); }

/* Sixteen bytes of a key, and of queries four entries, or sixteen codes. */
#define ENTRIES (16 / (int)sizeof(Entry))
#if TYPE == CODED
typedef uint4 Chunk;
#define OF_CHUNK 16
#else
typedef float4 Chunk;
#define OF_CHUNK 4
#endif
#define PIECE 128 /* entries of a query that are at hand */
#define N_HELD 2  /* times sixteen bytes of values that a thread loads at once */
#define STAGE_BYTES (THREADS * N_HELD * 16)

/* What a tile's queries are, and where its sequence lies. */
struct Taken {
    int row, n_rows; /* of the batch */
    int first_head, n_heads, n_queries;
    int n_sharing, n_keys, pitch; /* threads of a key, keys of a step, floats of weights of a key */
    int begin, end;               /* what some row sees */
    int all_begin, all_end;       /* what every row sees */
    int base;                     /* from here on, rows see places of their own */
};

struct Tile {
    Chunk queries[PIECE / OF_CHUNK][QUERIES + 1];
    uint4 values[STAGE_BYTES / 16];
    float4 weights[MOST_WEIGHTS / 4]; /* of a key, those of all queries, and four more */
    Visible rows[MOST_ROWS];
    float query_scales[PIECE / CODES][QUERIES];
    float factors[MOST_PAGES][QUERIES], tops[QUERIES], totals[QUERIES];
    int at[THREADS]; /* the slots of a step's numbers */
    Taken taken;
};

static __device__ __forceinline__ int smaller(int a, int b) { return a < b ? a : b; }
static __device__ __forceinline__ int larger(int a, int b) { return a > b ? a : b; }

static __device__ __forceinline__ bool sees(const Visible &row, int number)
{
    return row.begin <= number && number < row.end;
}

static __device__ __forceinline__ Taken taken_of(const Visible *rows, int row, int n_rows,
                                                 int first_head, int n_heads)
{
    Taken taken = {row, n_rows, first_head, n_heads, n_rows * n_heads};
    taken.n_sharing = taken.n_queries > 2 * EACH ? 4 : taken.n_queries > EACH ? 2 : 1;
    taken.n_keys = THREADS / taken.n_sharing;
    taken.pitch = EACH * taken.n_sharing + 4;
    taken.begin = taken.all_end = taken.base = 0x7fffffff;
    for (int i = 0; i < n_rows; i++) {
        taken.all_begin = larger(taken.all_begin, rows[i].begin);
        taken.all_end = smaller(taken.all_end, rows[i].end);
        if (rows[i].begin >= rows[i].end)
            continue;
        taken.begin = smaller(taken.begin, rows[i].begin);
        taken.end = larger(taken.end, rows[i].end);
        if (rows[i].base < rows[i].end)
            taken.base = smaller(taken.base, rows[i].base);
    }
    return taken;
}

/* Entries `from` .. of all queries, PIECE of them, zeros behind the last. */
static __device__ __forceinline__ void load_queries(Tile &tile, const Taken &taken, const float *q,
                                                    int n_heads, int width, int from)
{
    const int lane = threadIdx.x & 31;
    for (int i = threadIdx.x >> 5; i < taken.n_queries; i += WARPS) {
        const int row = taken.row + i / taken.n_heads, head = i % taken.n_heads;
        const float *query = q + ((size_t)row * n_heads + taken.first_head + head) * width;
#if TYPE == CODED
        for (int part = 0; part < PIECE / CODES; part++) {
            const int first = from + part * CODES + 2 * lane;
            float value[2];
            int code[2];
#pragma unroll
            for (int j = 0; j < 2; j++)
                value[j] = first + j < width ? query[first + j] : 0.0f;
            tile.query_scales[part][i] = quantise_block(value, code); /* the same in all lanes */
            signed char *codes = (signed char *)&tile.queries[part * 4 + lane / 8][i];
#pragma unroll
            for (int j = 0; j < 2; j++)
                codes[2 * lane % 16 + j] = (signed char)code[j];
        }
#else
        const int first = from + OF_CHUNK * lane;
        float value[OF_CHUNK];
#pragma unroll
        for (int j = 0; j < OF_CHUNK; j++)
            value[j] = first + j < width ? query[first + j] : 0.0f;
        tile.queries[lane][i] = Chunk{value[0], value[1], value[2], value[3]};
#endif
    }
}

/* Takes entries `from` .. of a key, PIECE of them, into the dots with queries share, share +
 * n_sharing, ... */
static __device__ __forceinline__ void add_dots(float (&dots)[EACH], const Tile &tile,
                                                const Taken &taken, const Entry *key,
                                                const float *scales, int width, int from, int share,
                                                bool is_aligned)
{
    const int n = smaller(width - from, PIECE);
    const int n_own = (taken.n_queries - share + taken.n_sharing - 1) / taken.n_sharing;
#if TYPE == CODED
    for (int part = 0; part * CODES < n; part++) {
        int whole[EACH] = {};
        const int n_chunks = smaller((n_kept(n) - part * CODES + 15) / 16, CODES / 16);
#pragma unroll 1
        for (int of_part = 0; of_part < n_chunks; of_part++) {
            const int chunk = part * (CODES / 16) + of_part;
            unsigned words[4] = {};
            if (is_aligned) {
                const uint4 codes = *(const uint4 *)(key + from + chunk * 16);
                words[0] = codes.x, words[1] = codes.y, words[2] = codes.z, words[3] = codes.w;
            } else {
#pragma unroll
                for (int j = 0; j < 4; j++)
                    if (chunk * 16 + 4 * j < n_kept(n))
                        words[j] = *(const unsigned *)(key + from + chunk * 16 + 4 * j);
            }
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                if (i >= n_own)
                    break;
                const uint4 query = tile.queries[chunk][i * taken.n_sharing + share];
                whole[i] = __dp4a((int)words[0], (int)query.x, whole[i]);
                whole[i] = __dp4a((int)words[1], (int)query.y, whole[i]);
                whole[i] = __dp4a((int)words[2], (int)query.z, whole[i]);
                whole[i] = __dp4a((int)words[3], (int)query.w, whole[i]);
            }
        }
        const float scale = scales[from / CODES + part];
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (i < n_own) {
                const float own = tile.query_scales[part][i * taken.n_sharing + share];
                dots[i] = fmaf((float)whole[i], scale * own, dots[i]);
            }
    }
#else
    if (is_aligned)
#pragma unroll 1
        for (int d = 0; d < n; d += ENTRIES) {
            const uint4 loaded = *(const uint4 *)(key + from + d);
            const unsigned words[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
            float entries[ENTRIES];
#pragma unroll
            for (int j = 0; j < ENTRIES; j++)
#if TYPE == F32
                entries[j] = __uint_as_float(words[j]);
#else
                entries[j] = widen((unsigned short)(words[j / 2] >> j % 2 * 16));
#endif
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                if (i >= n_own)
                    break;
#pragma unroll
                for (int j = 0; j < ENTRIES; j += OF_CHUNK) {
                    const Chunk query =
                        tile.queries[(d + j) / OF_CHUNK][i * taken.n_sharing + share];
                    dots[i] = fmaf(entries[j], query.x, dots[i]);
                    dots[i] = fmaf(entries[j + 1], query.y, dots[i]);
                    dots[i] = fmaf(entries[j + 2], query.z, dots[i]);
                    dots[i] = fmaf(entries[j + 3], query.w, dots[i]);
                }
            }
        }
    else
#pragma unroll 1
        for (int d = 0; d < n; d++) {
            const float entry = entry_of(key[from + d]);
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                if (i >= n_own)
                    break;
                const Chunk &query = tile.queries[d / OF_CHUNK][i * taken.n_sharing + share];
                dots[i] = fmaf(entry, ((const float *)&query)[d % OF_CHUNK], dots[i]);
            }
        }
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

/* Turns a query's scores of a step into weights, page by page; a warp. `only` is the row whose
 * places these are, or -1. */
static __device__ __forceinline__ void weigh(Tile &tile, const Taken &taken, int query, int first,
                                             int last, int only)
{
    const int lane = threadIdx.x & 31, row = query / taken.n_heads;
    const Visible &visible = tile.rows[row];
    float *weights = (float *)tile.weights + query;
    float top = tile.tops[query], total = tile.totals[query];
    for (int page = 0; page * PAGE < taken.n_keys; page++) {
        const int number = first + page * PAGE;
        const bool is_seen = (only < 0 || row == only) && larger(visible.begin, number) <
                                 smaller(smaller(visible.end, last), number + PAGE);
        float scores[2], highest = least(), factor = 1.0f;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int p = page * PAGE + lane + 32 * i;
            scores[i] = is_seen && sees(visible, first + p) ? weights[p * taken.pitch] : least();
            highest = scores[i] > highest ? scores[i] : highest; /* never a NaN */
        }
        if (is_seen) { /* the whole warp */
            for (int step = 16; step > 0; step >>= 1) {
                const float other = __shfl_xor_sync(EVERY_LANE, highest, step);
                highest = other > highest ? other : highest;
            }
            if (highest > top) {
                factor = exponential(top - highest);
                total *= factor;
                top = highest;
            }
#pragma unroll
            for (int i = 0; i < 2; i++)
                scores[i] = exponential(scores[i] - top);
            total += sum_of_page(scores[0], scores[1]);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int p = page * PAGE + lane + 32 * i;
            weights[p * taken.pitch] = is_seen && sees(visible, first + p) ? scores[i] : UNSEEN;
        }
        if (lane == 0)
            tile.factors[page][query] = factor;
    }
    __syncwarp();
    if (lane == 0) {
        tile.tops[query] = top;
        tile.totals[query] = total;
    }
}

/* The rows of values that are loaded at once, as their memory has them; a power of two. */
struct Stage {
    const char *values;
    long long pitch;
    int head, width, kept_width, n_rows;
    bool is_aligned;
};

/* Loads the values of numbers `first` .. of a step, sixteen bytes at a time; a thread holds its own. */
static __device__ __forceinline__ void hold(uint4 (&held)[N_HELD], const Tile &tile,
                                            const Stage &stage, int first)
{
    const int of_row = stage.width / ENTRIES;
#pragma unroll
    for (int i = 0; i < N_HELD; i++) {
        const int number = threadIdx.x + i * THREADS, p = number / of_row;
        if (!stage.is_aligned || p >= stage.n_rows || tile.at[first + p] == NOWHERE)
            continue;
        const char *rows = stage.values + (size_t)tile.at[first + p] * stage.pitch;
        held[i] = ((const uint4 *)row_of_head(rows, stage.kept_width, stage.head))[number % of_row];
    }
}

/* Hands the values over to all threads, or, where they do not lie on sixteen bytes, copies them. */
static __device__ __forceinline__ void hand_over(Tile &tile, const uint4 (&held)[N_HELD],
                                                 const Stage &stage, int first)
{
    if (stage.is_aligned) {
        const int of_row = stage.width / ENTRIES;
#pragma unroll
        for (int i = 0; i < N_HELD; i++)
            if (threadIdx.x + i * THREADS < stage.n_rows * of_row)
                tile.values[threadIdx.x + i * THREADS] = held[i];
        return;
    }
    for (int i = threadIdx.x; i < stage.n_rows * stage.width; i += THREADS) {
        const int at = tile.at[first + i / stage.width];
        if (at == NOWHERE)
            continue;
        const char *rows = stage.values + (size_t)at * stage.pitch;
        ((Entry *)tile.values)[i] =
            row_of_head(rows, stage.kept_width, stage.head)[i % stage.width];
    }
}

/* Takes the values at hand in, of numbers `first` .. of a step; all of them where IS_WHOLE, else
 * those that a query's row sees. */
template <bool IS_WHOLE>
static __device__ __forceinline__ void add_values(float (&out)[PER_GROUP][COLUMNS],
                                                  const Tile &tile, const Taken &taken,
                                                  const Stage &stage, int n_key_heads, int first)
{
    const int group = threadIdx.x / V_THREADS, column = threadIdx.x % V_THREADS;
#pragma unroll(IS_WHOLE && V_THREADS < 256 ? 4 : 1)
    for (int i = 0; i < stage.n_rows; i++) {
        const int p = first + i;
        if (!IS_WHOLE && tile.at[p] == NOWHERE)
            continue;
        const Entry *value = (const Entry *)tile.values + i * stage.width;
        float entry[COLUMNS], scale[COLUMNS];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            const int d = column + c * V_THREADS;
            entry[c] = d < stage.width ? entry_of(value[d]) : 0.0f;
#if TYPE == CODED
            const char *rows = stage.values + (size_t)tile.at[p] * stage.pitch;
            scale[c] = d < stage.width ? scales_of_head(rows, n_key_heads, stage.kept_width,
                                                        stage.head)[d / CODES]
                                       : 0.0f;
#else
            scale[c] = 1.0f;
#endif
        }
#pragma unroll
        for (int four = 0; four < PER_GROUP / 4; four++) {
            const int query = (four * GROUPS + group) * 4;
            if (query >= taken.n_queries)
                break;
            const float4 weights = tile.weights[(p * taken.pitch + query) / 4];
            const float weight[4] = {weights.x, weights.y, weights.z, weights.w};
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int c = 0; c < COLUMNS; c++)
                    if (IS_WHOLE || !(weight[j] < 0.0f)) {
                        float &sum = out[four * 4 + j][c];
                        sum = fmaf(weight[j] * scale[c], entry[c], sum);
                    }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    attention(const float *__restrict__ q, const int *__restrict__ seqs,
              const int *__restrict__ places, const int *__restrict__ parents,
              const Visible *__restrict__ visible_of_rows, const int *__restrict__ tables,
              const char *__restrict__ keys, const float *__restrict__ bias,
              float *__restrict__ sums, long long pitch, long long v_begin, int n_entries,
              int first_row, int n_rows, int n_ranges, int tile_rows, int n_takers, int n_key_heads,
              int n_shared, int k_width, int v_width, int kept_width, int furthest, float scale)
{
    __shared__ Tile tile;
    const int warp = threadIdx.x >> 5, group = threadIdx.x / V_THREADS;
    const int column = threadIdx.x % V_THREADS;
    const int n_head_tiles = (n_shared + QUERIES - 1) / QUERIES, n_heads = n_key_heads * n_shared;
    const int head_tile = blockIdx.x % n_head_tiles;
    const int key_head = blockIdx.x / n_head_tiles % n_key_heads;
    const int taker = blockIdx.x / n_head_tiles / n_key_heads % n_takers;
    const int first_of_tile = blockIdx.x / n_head_tiles / n_key_heads / n_takers * tile_rows;
    const int last_of_tile = smaller(first_of_tile + tile_rows, n_rows);
    const bool has_aligned_keys =
        (pitch | (long long)(n_kept(k_width) * sizeof(Entry))) % 16 == 0;

    Stage stage = {keys + v_begin, pitch, key_head, v_width, kept_width, PAGE, false};
    stage.is_aligned = (pitch | v_begin | (long long)(n_kept(kept_width) * sizeof(Entry)) |
                        (long long)(v_width * sizeof(Entry))) %
                           16 ==
                       0;
    while (stage.n_rows * v_width * (int)sizeof(Entry) > STAGE_BYTES)
        stage.n_rows /= 2;

    /* The rows of a tile are of one sequence or several, and takers take them in turns. */
    const Taken &taken = tile.taken;
    int next = first_of_tile;
    for (int number = 0; next < last_of_tile; number++) {
        const int row = next, seq = seqs[first_row + row];
        while (next < last_of_tile && seqs[first_row + next] == seq)
            next++;
        if (number % n_takers != taker)
            continue;
        const int *table = tables + (size_t)seq * n_entries;
        __syncthreads(); /* the rows before were read */
        if (threadIdx.x < next - row)
            tile.rows[threadIdx.x] = visible_of_rows[first_row + row + threadIdx.x];
        __syncthreads();
        if (threadIdx.x == 0)
            tile.taken = taken_of(tile.rows, first_row + row, next - row,
                                  key_head * n_shared + head_tile * QUERIES,
                                  smaller(n_shared - head_tile * QUERIES, QUERIES));
        __syncthreads();
        const int key = threadIdx.x / taken.n_sharing, share = threadIdx.x % taken.n_sharing;

        for (int range = taken.begin / RANGE + (int)blockIdx.y; range < (taken.end + RANGE - 1) / RANGE;
             range += n_ranges) {
            const int begin = larger(taken.begin, range * RANGE);
            const int end = smaller(taken.end, (range + 1) * RANGE);
            float out[PER_GROUP][COLUMNS] = {};
            __syncthreads(); /* the sums of the range before were read */
            if (threadIdx.x < QUERIES) {
                tile.tops[threadIdx.x] = least();
                tile.totals[threadIdx.x] = 0.0f;
            }
            bool has_queries = false;
            int only = -1;
            for (int first = begin / PAGE * PAGE; first < end;
                 first += only < 0 ? taken.n_keys : 0) {
                /* After a row's own places come those of the next row, and after the last one's the
                 * next step. */
                if (first + taken.n_keys > taken.base)
                    only++;
                if (only == taken.n_rows) {
                    only = -1;
                    continue;
                }
                __syncthreads(); /* the step before was read */
                if (threadIdx.x < taken.n_keys) {
                    const int own = first + threadIdx.x;
                    int at = NOWHERE;
                    for (int i = only < 0 ? 0 : only; i < (only < 0 ? taken.n_rows : only + 1); i++)
                        if (own < end && sees(tile.rows[i], own)) {
                            at = (int)slot_of_number(table, places, parents, tile.rows[i],
                                                     taken.row + i, own);
                            break;
                        }
                    tile.at[threadIdx.x] = at;
                }
                __syncthreads();
                uint4 held[N_HELD] = {};
                hold(held, tile, stage, 0);

                float dots[EACH] = {};
                const int at = tile.at[key];
                for (int from = 0; from < k_width; from += PIECE) {
                    if (!has_queries || k_width > PIECE) {
                        __syncthreads(); /* the queries' piece before was read */
                        load_queries(tile, taken, q, n_heads, k_width, from);
                        __syncthreads();
                        has_queries = true;
                    }
                    if (at != NOWHERE) {
                        const char *rows = keys + (size_t)at * pitch;
                        const float *scales =
                            TYPE == CODED ? scales_of_head(rows, n_key_heads, k_width, key_head) : 0;
                        add_dots(dots, tile, taken, row_of_head(rows, k_width, key_head), scales,
                                 k_width, from, share, has_aligned_keys);
                    }
                }
#pragma unroll
                for (int i = 0; i < EACH; i++) {
                    const int query = i * taken.n_sharing + share;
                    if (query >= taken.n_queries || at == NOWHERE)
                        break;
                    float score = dots[i] * scale;
                    if (bias) {
                        int distance = first + key - tile.rows[query / taken.n_heads].own;
                        distance = larger(smaller(distance, furthest), -furthest);
                        const int head = taken.first_head + query % taken.n_heads;
                        score += bias[(size_t)(distance + furthest) * n_heads + head];
                    }
                    ((float *)tile.weights)[key * taken.pitch + query] = score;
                }
                __syncthreads();
                for (int query = warp; query < taken.n_queries; query += WARPS)
                    weigh(tile, taken, query, first, end, only);

                const int n_left = smaller(taken.n_keys, end - first);
                for (int p = 0; p < n_left; p += stage.n_rows) {
                    __syncthreads(); /* the weights are made, the stage before was read */
                    hand_over(tile, held, stage, p);
                    __syncthreads();
                    if (p + stage.n_rows < n_left)
                        hold(held, tile, stage, p + stage.n_rows);
                    if (p % PAGE == 0)
#pragma unroll
                        for (int i = 0; i < PER_GROUP; i++) {
                            const int query = (i / 4 * GROUPS + group) * 4 + i % 4;
                            if (query < taken.n_queries)
#pragma unroll
                                for (int c = 0; c < COLUMNS; c++)
                                    out[i][c] *= tile.factors[p / PAGE][query];
                        }
                    const int of_stage = first + p;
                    if (only < 0 && taken.all_begin <= of_stage &&
                        of_stage + stage.n_rows <= taken.all_end)
                        add_values<true>(out, tile, taken, stage, n_key_heads, p);
                    else
                        add_values<false>(out, tile, taken, stage, n_key_heads, p);
                }
            }

            /* A row counts the ranges from its own first one on. */
            const size_t of_range = v_width + 2;
            const auto sums_of = [&](int query) {
                const Visible &own = tile.rows[query / taken.n_heads];
                const bool is_empty =
                    own.begin >= own.end || own.begin >= end || own.end <= range * RANGE;
                const size_t head = taken.first_head + query % taken.n_heads;
                const size_t row_of_go = row + query / taken.n_heads;
                return is_empty ? (float *)0
                                : sums + ((row_of_go * n_heads + head) * n_ranges + range -
                                          own.begin / RANGE) * of_range;
            };
#pragma unroll
            for (int i = 0; i < PER_GROUP; i++) {
                const int query = (i / 4 * GROUPS + group) * 4 + i % 4;
                float *own = query < taken.n_queries ? sums_of(query) : 0;
#pragma unroll
                for (int c = 0; c < COLUMNS; c++)
                    if (own && column + c * V_THREADS < v_width)
                        own[column + c * V_THREADS] = out[i][c];
            }
            float *own = threadIdx.x < taken.n_queries ? sums_of(threadIdx.x) : 0;
            if (own) {
                own[v_width] = tile.tops[threadIdx.x];
                own[v_width + 1] = tile.totals[threadIdx.x];
            }
        }
    }
}
