/* The sums of one range of what rows see, for query heads that share a key head: the largest score,
 * the sum of exp(score - largest), and the sum of exp(score - largest) v.
 *
 * The order of sums is that of the CPU's kernels, but that their ranges are longer: a page of 64
 * numbers is taken in after the other. A score is one chain over the key's width, times the scale; or
 * where there is a cap, that times the tanh of this. A bias by distance is added, or what a slope makes
 * of it is taken off. CODED queries become codes, too, and a chain's links are blocks of 64. A page's
 * weights are summed in sixteen lanes (number p in lane p mod 16) and a tree, and values number after
 * number. Of the CTAs that have ranges of the same heads and rows, the one that ends last takes these
 * together (merge.cuh). Where there is room for the sums of one range alone (n_ranges 1), a CTA goes
 * through all of them and takes each in when it is made, in the same way.
 *
 * A CTA takes a tile: up to QUERIES queries, which are heads of consecutive rows of one sequence, and
 * reads each key and each value once for all of them. A query takes in what its own row sees and
 * skips the rest, so that its sums depend on its row alone, whatever the tile. What follows `base` in
 * a tree is another place for each row, and read row by row.
 * All scores of a range are made first: a thread makes those of KEYS keys with EACH queries, and KEYS
 * threads share a key. Then a warp takes the weights of a query at a time; then V_THREADS threads, of
 * COLUMNS neighbouring columns each, take values in, which come through a ring of shared memory.
 * Keys, whole ones in a thread, come to registers HELD sixteens of bytes ahead. Where rows of heads do
 * not lie on sixteen bytes (not ALIGNED) both come entry by entry.
 * Grid: (tiles of rows * key heads * tiles of heads * takers, ranges). Block: 256.
 */
#include "copies.cuh"
#include "early.cuh"
#include "float16.cuh"
#include "functions.cuh"
#include "lanes.cuh"
#include "last.cuh"
#include "quantise.cuh"
#include "visible.cuh"
#include "merge.cuh"
#include "stored.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)
#define PAGES (RANGE / PAGE)
#define GROUPS (THREADS / V_THREADS)
#define PER_GROUP (QUERIES / GROUPS)
#define N_OWN ((QUERIES + WARPS - 1) / WARPS) /* queries that a warp loads */
#define HELD (TYPE == CODED ? 4 : 8)
#define PITCH (RANGE + 8) /* floats of a query's weights: other banks for each */
#define NOWHERE (-1)
#define UNSEEN (-1.0f) /* no weight is negative */

static_assert(RANGE == THREADS, "a thread finds the slot of a number");

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
#define PARTS (PIECE / CODES)

/* The ring of values: a stage has whole rows, four or more. */
#define ROW (V_THREADS * COLUMNS) /* entries, of which those past the width are noise */
#define ROW_SCALES (ROW / CODES)
#define ROW_BYTES (ROW * (int)sizeof(Entry))
#define STAGE_BYTES (ROW_BYTES > 1024 ? 4 * ROW_BYTES : 4096)
#define ROWS (STAGE_BYTES / ROW_BYTES)
#define STAGES ((QUERIES > 8 ? 20480 : 32768) / STAGE_BYTES)

/* What a launch attends with. */
struct Heads {
    const float *q, *bias, *slopes;
    const char *keys;
    int pitch, n_heads, width, furthest;
    float scale, cap;
};

/* Where a head's rows lie among those of a place, and their scales. */
struct Place {
    size_t at;
    int to_scales; /* bytes */
};

/* What a tile's queries are, and where its sequence lies. */
struct Taken {
    int seq, of_tile, row, n_rows; /* the first row of the tile, and of the batch */
    int first_head, n_heads, n_queries;
    int begin, end;         /* what some row sees */
    int all_begin, all_end; /* what every row sees */
    int base;               /* from here on, rows see places of their own */
    int first;              /* of the range at hand */
};

/* Numbers from .. until of a range that are places of all rows, or of the row `only`. */
struct Part {
    int from, until, only;
};

/* Whether a query is one of the row `only`, or of any. */
static __device__ __forceinline__ bool is_of(const Taken &taken, int only, int query)
{
    const int first = only * taken.n_heads;
    return only < 0 ? query < taken.n_queries : first <= query && query < first + taken.n_heads;
}

struct Tile {
    Chunk queries[PIECE / OF_CHUNK][QUERIES + 1];
    alignas(16) Entry values[STAGES][ROWS * ROW];
    float weights[QUERIES][PITCH];
    Visible rows[QUERIES]; /* of all its sequences */
    float value_scales[STAGES][TYPE == CODED ? ROWS * ROW_SCALES : 1];
    float query_scales[PARTS][QUERIES];
    float factors[PAGES][QUERIES], tops[QUERIES], totals[QUERIES];
    size_t offsets[QUERIES];             /* of the queries */
    float before[QUERIES], now[QUERIES]; /* factors of what was taken together, and of a range */
    int seqs[QUERIES];
    int at[RANGE];                /* the slots of a range's numbers */
    int first_row, n_rows, taker; /* of the launch, and which of its sequences are taken */
    int next, n_seqs;             /* rows and sequences that were gone through */
    int unit, n_ctas;             /* whose ranges are taken together, and how many have them */
    int first_joined, n_joined;   /* heads of these */
    Taken taken;
    Place keys_of_head, values_of_head;
};

static __device__ __forceinline__ int smaller(int a, int b) { return a < b ? a : b; }
static __device__ __forceinline__ int larger(int a, int b) { return a > b ? a : b; }

static __device__ __forceinline__ bool sees(const Visible &row, int number)
{
    return row.begin <= number && number < row.end;
}

static __device__ __forceinline__ Place place_of(size_t begin, int n_heads, int width, int head)
{
    return Place{begin + (size_t)head * n_kept(width) * sizeof(Entry),
                 (n_heads - head) * n_kept(width) + head * n_scales(width) * (int)sizeof(float)};
}

/* Returns what is taken next: the rows of a sequence, of those that every n-th taker takes; none where
 * there is no other one. Heads stay. `range` of its ranges are left to others. */
static __device__ __forceinline__ Taken next_taken(Tile &tile, int n, int range)
{
    Taken taken = {};
    while (tile.next < tile.n_rows && !taken.n_rows) {
        taken.of_tile = tile.next, taken.seq = tile.seqs[tile.next];
        while (tile.next < tile.n_rows && tile.seqs[tile.next] == taken.seq)
            tile.next++;
        if (tile.n_seqs++ % n == tile.taker)
            taken.n_rows = tile.next - taken.of_tile;
    }
    taken.row = tile.first_row + taken.of_tile;
    taken.first_head = tile.taken.first_head, taken.n_heads = tile.taken.n_heads;
    taken.n_queries = taken.n_rows * taken.n_heads;
    const Visible *rows = tile.rows + taken.of_tile;
    taken.begin = taken.all_end = taken.base = 0x7fffffff;
    for (int i = 0; i < taken.n_rows; i++) {
        taken.all_begin = larger(taken.all_begin, rows[i].begin);
        taken.all_end = smaller(taken.all_end, rows[i].end);
        if (rows[i].begin >= rows[i].end)
            continue;
        taken.begin = smaller(taken.begin, rows[i].begin);
        taken.end = larger(taken.end, rows[i].end);
        if (rows[i].base < rows[i].end)
            taken.base = smaller(taken.base, rows[i].base);
    }
    taken.first = taken.begin < taken.end ? (taken.begin / RANGE + range) * RANGE : taken.end;
    return taken;
}

/* The parts of a range: what is there for all rows, and after that what a row has for itself. */
static __device__ __forceinline__ Part part_of(const Taken &taken, int number)
{
    const int begin = larger(taken.begin - taken.first, 0);
    const int end = smaller(taken.end - taken.first, RANGE);
    const int base = larger(smaller(taken.base - taken.first, end), begin);
    return number ? Part{base, end, number - 1} : Part{begin, base, -1};
}

static __device__ __forceinline__ int n_parts_of(const Taken &taken)
{
    return taken.base < smaller(taken.end, taken.first + RANGE) ? taken.n_rows + 1 : 1;
}

/* Brings entries `from` .. of all queries, PIECE of them, where they are asked for, and does something
 * meanwhile; both where all threads have read what was there. CODED queries become codes. */
template <class Work>
static __device__ __forceinline__ void bring_queries(Tile &tile, const Heads &heads, int from,
                                                     bool are_asked_for, Work meanwhile)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int n = are_asked_for ? tile.taken.n_queries : 0;
#if ALIGNED && TYPE != CODED
    __syncthreads();
    const int d = from + OF_CHUNK * lane;
    for (int query = warp; query < n; query += WARPS)
        if (d < heads.width)
            copy_later(&tile.queries[lane][query], heads.q + tile.offsets[query] + d);
    end_group();
    meanwhile();
    wait_for_groups<0>();
#else
    float held[N_OWN][4];
#pragma unroll
    for (int i = 0; i < N_OWN; i++) {
        const int query = warp + i * WARPS;
        const float *own = heads.q + (query < n ? tile.offsets[query] : 0);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int d = from + (TYPE == CODED ? j / 2 * CODES + 2 * lane + j % 2 : 4 * lane + j);
            held[i][j] = query < n && d < heads.width ? own[d] : 0.0f;
        }
    }
    __syncthreads();
    meanwhile();
#pragma unroll
    for (int i = 0; i < N_OWN; i++) {
        const int query = warp + i * WARPS;
        if (query >= n) /* a whole warp */
            break;
#if TYPE == CODED
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const float value[2] = {held[i][2 * part], held[i][2 * part + 1]};
            int code[2];
            tile.query_scales[part][query] =
                quantise_block(value, code); /* the same in all lanes */
            signed char *codes = (signed char *)&tile.queries[part * 4 + lane / 8][query];
#pragma unroll
            for (int j = 0; j < 2; j++)
                codes[2 * lane % 16 + j] = (signed char)code[j];
        }
#else
        tile.queries[lane][query] = Chunk{held[i][0], held[i][1], held[i][2], held[i][3]};
#endif
    }
#endif
    __syncthreads();
}

/* Sixteen bytes of a key, number `chunk`; zeros after the last entry. */
static __device__ __forceinline__ uint4 load_chunk(const Entry *key, int chunk, int width)
{
#if ALIGNED
    return ((const uint4 *)key)[chunk];
#else
    constexpr int STEP = TYPE == F16 ? 1 : 4 / (int)sizeof(Entry); /* codes are whole fours */
    unsigned words[4] = {};
#pragma unroll
    for (int j = 0; j < ENTRIES; j += STEP) {
        const int d = chunk * ENTRIES + j;
        if (d < n_kept(width))
#if TYPE == F16
            words[j / 2] |= (unsigned)key[d] << j % 2 * 16;
#else
            words[j / STEP] = *(const unsigned *)(key + d);
#endif
    }
    return uint4{words[0], words[1], words[2], words[3]};
#endif
}

/* The dots of some keys with some queries; CODED, of blocks those of codes. */
template <int KEYS, int EACH> struct Dots {
    float whole[KEYS][EACH];
#if TYPE == CODED
    int codes[KEYS][EACH];
#endif
};

/* Takes sixteen bytes of each key in, which queries have as number `chunk` of their piece. */
template <int SHARING, int KEYS, int EACH>
static __device__ __forceinline__ void add(Dots<KEYS, EACH> &dots, const Tile &tile,
                                           const uint4 (&key)[KEYS], int chunk, int share)
{
#if TYPE == CODED
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const uint4 query = tile.queries[chunk][i * SHARING + share];
#pragma unroll
        for (int j = 0; j < KEYS; j++) {
            int &sum = dots.codes[j][i];
            sum = __dp4a((int)key[j].x, (int)query.x, sum);
            sum = __dp4a((int)key[j].y, (int)query.y, sum);
            sum = __dp4a((int)key[j].z, (int)query.z, sum);
            sum = __dp4a((int)key[j].w, (int)query.w, sum);
        }
    }
#else
#pragma unroll
    for (int part = 0; part < ENTRIES / OF_CHUNK; part++) {
        float entries[KEYS][OF_CHUNK];
#pragma unroll
        for (int j = 0; j < KEYS; j++) {
            const unsigned words[4] = {key[j].x, key[j].y, key[j].z, key[j].w};
#pragma unroll
            for (int k = 0; k < OF_CHUNK; k++)
#if TYPE == F32
                entries[j][k] = __uint_as_float(words[k]);
#else
                entries[j][k] = widen((unsigned short)(words[part * 2 + k / 2] >> k % 2 * 16));
#endif
        }
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const Chunk query =
                tile.queries[chunk * (ENTRIES / OF_CHUNK) + part][i * SHARING + share];
#pragma unroll
            for (int j = 0; j < KEYS; j++) {
                float &sum = dots.whole[j][i];
                sum = fmaf(entries[j][0], query.x, sum);
                sum = fmaf(entries[j][1], query.y, sum);
                sum = fmaf(entries[j][2], query.z, sum);
                sum = fmaf(entries[j][3], query.w, sum);
            }
        }
    }
#endif
}

/* Ends a block of codes, which is a link of the chain. */
template <int SHARING, int KEYS, int EACH>
static __device__ __forceinline__ void end_block(Dots<KEYS, EACH> &dots, const Tile &tile,
                                                 const float (&scales)[KEYS][PARTS], int part,
                                                 int share)
{
#if TYPE == CODED
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const float own = tile.query_scales[part][i * SHARING + share];
#pragma unroll
        for (int j = 0; j < KEYS; j++) {
            const float scale = part ? scales[j][1] : scales[j][0];
            dots.whole[j][i] = fmaf((float)dots.codes[j][i], scale * own, dots.whole[j][i]);
            dots.codes[j][i] = 0;
        }
    }
#endif
}

/* A part's scores, of the numbers `first` .. of its range. `has_queries` says whether their first
 * piece is at hand. */
template <int SHARING, int KEYS, int EACH>
static __device__ __forceinline__ void score(Tile &tile, const Heads &heads, int only, int first,
                                             bool has_queries)
{
    constexpr int DEPTH =
        (SHARING > 2 ? 4 : HELD) / KEYS; /* chunks of a key that are on their way */
    constexpr int OF_BLOCK = CODES / ENTRIES;
    const Taken &taken = tile.taken;
    const int share = threadIdx.x % SHARING, own = first + threadIdx.x / SHARING;
    const int n_chunks = (n_kept(heads.width) + ENTRIES - 1) / ENTRIES;
    const char *first_key = heads.keys + tile.keys_of_head.at;
    int at[KEYS];
#pragma unroll
    for (int j = 0; j < KEYS; j++)
        at[j] = tile.at[own + j * (THREADS / SHARING)];
    const auto key = [&](int j) { return first_key + (long long)at[j] * heads.pitch; };
    uint4 held[DEPTH][KEYS] = {};
    const auto hold = [&](int slot, int chunk) {
#pragma unroll
        for (int j = 0; j < KEYS; j++)
            if (at[j] != NOWHERE && chunk < n_chunks)
                held[slot][j] = load_chunk((const Entry *)key(j), chunk, heads.width);
    };
#pragma unroll
    for (int i = 0; i < DEPTH; i++)
        hold(i, i);

    Dots<KEYS, EACH> dots = {};
    for (int from = 0; from < heads.width; from += PIECE) {
        if (from || !has_queries)
            bring_queries(tile, heads, from, true, [] {});
        float scales[KEYS][PARTS] = {};
#if TYPE == CODED
#pragma unroll
        for (int j = 0; j < KEYS; j++)
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                if (at[j] != NOWHERE && from + part * CODES < heads.width)
                    scales[j][part] = *(const float *)(key(j) + tile.keys_of_head.to_scales +
                                                       (from / CODES + part) * 4);
#endif
        const int before = from / ENTRIES, n = smaller(n_chunks - before, PIECE / ENTRIES);
#pragma unroll 1
        for (int turn = 0; turn < n; turn += DEPTH)
#pragma unroll
            for (int i = 0; i < DEPTH; i++)
                if (turn + i < n) {
                    add<SHARING>(dots, tile, held[i], turn + i, share);
                    hold(i, before + turn + i + DEPTH);
                    if (TYPE == CODED && ((turn + i + 1) % OF_BLOCK == 0 || turn + i + 1 == n))
                        end_block<SHARING>(dots, tile, scales, (turn + i) / OF_BLOCK, share);
                }
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int query = i * SHARING + share;
        if (is_of(taken, only, query))
#pragma unroll
            for (int j = 0; j < KEYS; j++)
                if (at[j] != NOWHERE)
                    tile.weights[query][own + j * (THREADS / SHARING)] =
                        dots.whole[j][i] * heads.scale;
    }
}

template <int SHARING, int EACH>
static __device__ __forceinline__ void score_shared(Tile &tile, const Heads &heads,
                                                    const Part &part)
{
    constexpr int KEYS = TYPE == CODED && SHARING > 2 ? SHARING / 2 : SHARING, HALF = RANGE / 2;
    if constexpr (SHARING > 2)
        if (KEYS < SHARING || part.until <= HALF || part.from >= HALF) {
            for (int first = part.from / HALF * HALF; first < part.until; first += HALF)
                score<SHARING, SHARING / 2, EACH>(tile, heads, part.only, first,
                                                  first <= part.from || heads.width <= PIECE);
            return;
        }
    if constexpr (KEYS == SHARING)
        score<SHARING, SHARING, EACH>(tile, heads, part.only, 0, true);
}

static __device__ __forceinline__ void score_all(Tile &tile, const Heads &heads, const Part &part)
{
    const int n_queries = tile.taken.n_queries;
    if (part.from >= part.until)
        return;
    if (n_queries == 1)
        score<1, 1, 1>(tile, heads, part.only, 0, true);
    else if (n_queries == 2)
        score_shared<2, 1>(tile, heads, part);
    else if (n_queries <= 4)
        score_shared<2, 2>(tile, heads, part);
#if QUERIES > 4
    else if (n_queries <= 8)
        score_shared<2, 4>(tile, heads, part);
#endif
#if QUERIES > 8
    else
        score_shared<4, 4>(tile, heads, part);
#endif
}

/* The sum of each page's 64 weights, two of which are in each lane. */
static __device__ __forceinline__ void sum_pages(float (&sums)[PAGES],
                                                 const float (&weights)[PAGES][2])
{
    const bool is_upper = threadIdx.x & 16;
    float others[2 * PAGES];
#pragma unroll
    for (int i = 0; i < 2 * PAGES; i++)
        others[i] = weights[i / 2][i % 2];
    exchange(others, 16);
#pragma unroll
    for (int page = 0; page < PAGES; page++) {
        const float first = weights[page][0], second = weights[page][1];
        const float first_of_other = others[2 * page], second_of_other = others[2 * page + 1];
        float sum = is_upper ? first_of_other + first : first + first_of_other;
        sum += is_upper ? second_of_other : second;
        sums[page] = sum + (is_upper ? second : second_of_other);
    }
#pragma unroll
    for (int step = 8; step > 0; step >>= 1) {
        float halves[PAGES];
#pragma unroll
        for (int page = 0; page < PAGES; page++)
            halves[page] = sums[page];
        exchange(halves, step);
#pragma unroll
        for (int page = 0; page < PAGES; page++)
            sums[page] += halves[page];
    }
}

/* Caps a query's scores of a range, and takes what their distances cost; each lane does so with those
 * that it reads afterwards. */
static __device__ __forceinline__ void adjust(float *weights, const Heads &heads, int head,
                                              const Visible &visible, int first)
{
    const float slope = heads.slopes ? heads.slopes[head] : 0.0f;
#pragma unroll 1
    for (int p = threadIdx.x & 31; p < RANGE; p += 32)
        if (sees(visible, first + p)) {
            const float score =
                heads.cap > 0.0f ? heads.cap * hyperbolic_tangent(weights[p]) : weights[p];
            weights[p] = score - slope * magnitude((float)(first + p - visible.own));
        }
}

/* Turns a query's scores of a range into weights; a warp. What a page needs of those before it is its
 * largest score alone, so that all go side by side. */
static __device__ __forceinline__ void weigh(Tile &tile, const Heads &heads, int query)
{
    const int lane = threadIdx.x & 31;
    const Visible visible = tile.rows[tile.taken.of_tile + query / tile.taken.n_heads];
    const int head = tile.taken.first_head + query % tile.taken.n_heads;
    const float *bias = heads.bias + head;
    float *weights = tile.weights[query];
    if (heads.slopes || heads.cap > 0.0f)
        adjust(weights, heads, head, visible, tile.taken.first);
    float scores[PAGES][2], highest[PAGES], factors[PAGES], sums[PAGES];
    bool is_seen[PAGES];
#pragma unroll
    for (int page = 0; page < PAGES; page++) {
        const int first = tile.taken.first + page * PAGE;
        is_seen[page] = larger(visible.begin, first) < smaller(visible.end, first + PAGE);
        highest[page] = least();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int number = first + lane + 32 * i;
            float &score = scores[page][i];
            score = sees(visible, number) ? weights[page * PAGE + lane + 32 * i] : least();
            if (heads.bias && sees(visible, number)) {
                int distance = number - visible.own;
                distance = larger(smaller(distance, heads.furthest), -heads.furthest);
                score += bias[(size_t)(distance + heads.furthest) * heads.n_heads];
            }
            highest[page] = score > highest[page] ? score : highest[page]; /* never a NaN */
        }
    }
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) {
        float others[PAGES];
#pragma unroll
        for (int page = 0; page < PAGES; page++)
            others[page] = highest[page];
        exchange(others, step);
#pragma unroll
        for (int page = 0; page < PAGES; page++)
            highest[page] = others[page] > highest[page] ? others[page] : highest[page];
    }
    float top = least(), total = 0.0f;
#pragma unroll
    for (int page = 0; page < PAGES; page++) {
        const bool has_moved = is_seen[page] && highest[page] > top;
        factors[page] = has_moved ? exponential(top - highest[page]) : 1.0f;
        top = has_moved ? highest[page] : top;
#pragma unroll
        for (int i = 0; i < 2; i++)
            scores[page][i] = exponential(scores[page][i] - top);
    }
    sum_pages(sums, scores);
#pragma unroll
    for (int page = 0; page < PAGES; page++) {
        total *= factors[page];
        if (is_seen[page])
            total += sums[page];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int p = page * PAGE + lane + 32 * i;
            weights[p] = sees(visible, tile.taken.first + p) ? scores[page][i] : UNSEEN;
        }
        if (lane == 0)
            tile.factors[page][query] = factors[page];
    }
    if (lane == 0) {
        tile.tops[query] = top;
        tile.totals[query] = total;
    }
}

/* Lets a stage's values come, of the numbers whose slots are known. */
static __device__ __forceinline__ void fetch(Tile &tile, const char *values, int pitch, int width,
                                             int stage)
{
    if (stage * ROWS < RANGE) {
        const int *at = tile.at + stage * ROWS;
        Entry *to = tile.values[stage % STAGES];
        values += tile.values_of_head.at;
        const auto slot = [&](int row) { return values + (long long)at[row] * pitch; };
#if ALIGNED
#pragma unroll
        for (int j = 0; j < STAGE_BYTES / 16; j += THREADS) {
            const int i = (threadIdx.x + j) * ENTRIES, row = i / ROW, d = i % ROW;
            if (d < width && at[row] != NOWHERE)
                copy_later(to + i, (const Entry *)slot(row) + d);
        }
#else
#pragma unroll 1
        for (int i = threadIdx.x; i < ROWS * ROW; i += THREADS) {
            const int row = i / ROW, d = i % ROW;
            if (d < width && at[row] != NOWHERE)
                to[i] = ((const Entry *)slot(row))[d];
        }
#endif
#if TYPE == CODED
        const int row = threadIdx.x / ROW_SCALES, block = threadIdx.x % ROW_SCALES;
        if (row < ROWS && block * CODES < width && at[row] != NOWHERE)
            copy_word_later(tile.value_scales[stage % STAGES] + threadIdx.x,
                            (const float *)(slot(row) + tile.values_of_head.to_scales) + block);
#endif
    }
    end_group();
}

/* Neighbouring columns. */
struct alignas(COLUMNS * sizeof(Entry)) Columns {
    Entry of[COLUMNS];
};

/* Takes a stage's values in, for N queries of a thread: all of them where IS_WHOLE, else of a part
 * those that a query's row sees. */
template <bool IS_WHOLE, int N>
static __device__ __forceinline__ void add_some(float (&out)[PER_GROUP][COLUMNS], const Tile &tile,
                                                int stage, const Part &part)
{
    const int group = threadIdx.x / V_THREADS, column = threadIdx.x % V_THREADS * COLUMNS;
    const Entry *values = tile.values[stage % STAGES] + column;
#pragma unroll(N == 1 ? 2 : 1)
    for (int row = 0; row < ROWS; row += 4) {
        const int p = stage * ROWS + row;
        float entries[4][COLUMNS], scales[4];
        float4 weights[N];
#pragma unroll
        for (int i = 0; i < N; i++)
            weights[i] = *(const float4 *)(tile.weights[i * GROUPS + group] + p);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const Columns columns = *(const Columns *)(values + (row + k) * ROW);
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                entries[k][c] = entry_of(columns.of[c]);
#if TYPE == CODED
            const int at = (row + k) * ROW_SCALES + column / CODES;
            scales[k] = tile.value_scales[stage % STAGES][at];
#endif
        }
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int i = 0; i < N; i++) {
                const float of_query[4] = {weights[i].x, weights[i].y, weights[i].z, weights[i].w};
                const bool is_own =
                    IS_WHOLE ||
                    (part.from <= p + k && p + k < part.until &&
                     (part.only < 0 || is_of(tile.taken, part.only, i * GROUPS + group)));
                if (is_own && (IS_WHOLE || !(of_query[k] < 0.0f))) {
                    const float weight = TYPE == CODED ? of_query[k] * scales[k] : of_query[k];
#pragma unroll
                    for (int c = 0; c < COLUMNS; c++)
                        out[i][c] = fmaf(weight, entries[k][c], out[i][c]);
                }
            }
    }
}

template <bool IS_WHOLE>
static __device__ __forceinline__ void add_values(float (&out)[PER_GROUP][COLUMNS],
                                                  const Tile &tile, int n_queries, int stage,
                                                  const Part &part)
{
    if ((int)threadIdx.x / V_THREADS >= n_queries) /* a whole warp */
        return;
    if (PER_GROUP > 1 && n_queries > GROUPS)
        add_some<IS_WHOLE, PER_GROUP>(out, tile, stage, part);
    else
        add_some<IS_WHOLE, 1>(out, tile, stage, part);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    attention(const float *__restrict__ q, const int *__restrict__ seqs,
              const int *__restrict__ places, const int *__restrict__ parents,
              const Visible *__restrict__ visible_of_rows, const int *__restrict__ tables,
              const char *__restrict__ keys, const float *__restrict__ bias,
              const float *__restrict__ slopes, const float *__restrict__ sinks, float *sums,
              float *y, signed char *codes, float *scales, short *sums_of_codes, unsigned *counters,
              int pitch, long long v_begin, int n_entries, int first_row, int n_rows, int n_ranges,
              int tile_rows, int tile_heads, int n_takers, int n_key_heads, int n_shared,
              int n_joined, int block, int k_width, int v_width, int kept_width, int furthest,
              float scale, float cap)
{
    __shared__ Tile tile;
    const int warp = threadIdx.x >> 5, group = threadIdx.x / V_THREADS;
    const int column = threadIdx.x % V_THREADS * COLUMNS;
    const Heads heads = {q,       bias,     slopes, keys, pitch, n_key_heads * n_shared,
                         k_width, furthest, scale,  cap};
    {
        const int n_head_tiles = (n_shared + tile_heads - 1) / tile_heads;
        const int of_takers = blockIdx.x / n_takers;
        const int first_of_tile = of_takers / n_head_tiles / n_key_heads * tile_rows;
        const int n_of_tile = smaller(n_rows - first_of_tile, tile_rows);
        if (threadIdx.x < n_of_tile) {
            tile.seqs[threadIdx.x] = seqs[first_row + first_of_tile + threadIdx.x];
            tile.rows[threadIdx.x] = visible_of_rows[first_row + first_of_tile + threadIdx.x];
        }
        if (threadIdx.x == 0) {
            const int head_tile = of_takers % n_head_tiles;
            const int key_head = of_takers / n_head_tiles % n_key_heads;
            tile.first_row = first_row + first_of_tile, tile.n_rows = n_of_tile;
            tile.taker = blockIdx.x % n_takers, tile.next = tile.n_seqs = 0;
            tile.unit = of_takers / n_joined;
            tile.n_ctas = n_joined * n_takers * gridDim.y;
            tile.taken.first_head = key_head * n_shared + head_tile * tile_heads;
            tile.taken.n_heads = smaller(n_shared - head_tile * tile_heads, tile_heads);
            tile.first_joined = tile.taken.first_head;
            tile.n_joined = tile.taken.n_heads;
            if (n_joined > 1) { /* all of some key heads */
                const int n_key_heads_joined = n_joined / n_head_tiles;
                tile.first_joined = key_head / n_key_heads_joined * n_key_heads_joined * n_shared;
                tile.n_joined = n_key_heads_joined * n_shared;
            }
            tile.keys_of_head = place_of(0, n_key_heads, k_width, key_head);
            tile.values_of_head = place_of(v_begin, n_key_heads, kept_width, key_head);
        }
    }

    let_next_begin();

    /* The rows of a tile are of one sequence or several, and takers take them in turns. */
    const Taken &taken = tile.taken;
    for (;;) {
        __syncthreads(); /* the sequence before was read */
        if (threadIdx.x == 0)
            tile.taken = next_taken(tile, n_takers, blockIdx.y);
        __syncthreads();
        if (taken.n_rows == 0)
            break;
        if (threadIdx.x < taken.n_queries) {
            const size_t of_row = taken.row + threadIdx.x / taken.n_heads;
            const size_t head = taken.first_head + threadIdx.x % taken.n_heads;
            tile.offsets[threadIdx.x] = (of_row * heads.n_heads + head) * k_width;
        }
        __syncthreads();

        while (taken.first < taken.end) {
            const auto find = [&](const Part &part) {
                const int number = taken.first + threadIdx.x, p = threadIdx.x;
                const int last = part.only < 0 ? taken.n_rows : part.only + 1;
                const int *table = tables + (size_t)taken.seq * n_entries;
                int at = NOWHERE;
                if (part.from <= p && p < part.until)
                    for (int i = larger(part.only, 0); i < last; i++)
                        if (sees(tile.rows[taken.of_tile + i], number)) {
                            at = (int)slot_of_number(table, places, parents,
                                                     tile.rows[taken.of_tile + i], taken.row + i,
                                                     number);
                            break;
                        }
                tile.at[p] = at;
            };
            const auto start = [&](const Part &part) {
#pragma unroll 1
                for (int i = 0; i < STAGES - 1; i++)
                    fetch(tile, keys, pitch, v_width, part.from / PAGE * (PAGE / ROWS) + i);
            };

            for (int number = 0; number < n_parts_of(taken); number++) {
                const Part part = part_of(taken, number);
                bring_queries(tile, heads, 0, number == 0 || k_width > PIECE, [&] { find(part); });
                if (n_parts_of(taken) == 1)
                    start(part);
                score_all(tile, heads, part);
            }
            __syncthreads();
            for (int query = warp; query < taken.n_queries; query += WARPS)
                weigh(tile, heads, query);

            float out[PER_GROUP][COLUMNS] = {};
            for (int number = 0; number < n_parts_of(taken); number++) {
                const Part part = part_of(taken, number);
                if (n_parts_of(taken) > 1) {
                    __syncthreads(); /* the part before was read */
                    find(part);
                    __syncthreads();
                    start(part);
                }
                /* What all rows see of places that they have together. */
                const int whole_from = part.only < 0 ? taken.all_begin - taken.first : RANGE;
                const int whole_until = smaller(part.until, taken.all_end - taken.first);
                const int n_queries = taken.n_queries;
                for (int i = part.from / PAGE * (PAGE / ROWS); i * ROWS < part.until; i++) {
                    wait_for_groups<STAGES - 2>();
                    __syncthreads(); /* the stage is there, the one before it was read */
                    fetch(tile, keys, pitch, v_width, i + STAGES - 1);
                    const int p = i * ROWS;
                    if (p % PAGE == 0 && (part.only < 0 || p >= part.from))
#pragma unroll
                        for (int j = 0; j < PER_GROUP; j++) {
                            const int query = j * GROUPS + group;
                            if (is_of(taken, part.only, query))
#pragma unroll
                                for (int c = 0; c < COLUMNS; c++)
                                    out[j][c] *= tile.factors[p / PAGE][query];
                        }
                    if (whole_from <= p && p + ROWS <= whole_until)
                        add_values<true>(out, tile, n_queries, i, part);
                    else
                        add_values<false>(out, tile, n_queries, i, part);
                }
            }

            /* A row counts the ranges from its own first one on. */
            const size_t of_range = v_width + 2;
            const auto sums_of = [&](int query) {
                const Visible &own = tile.rows[taken.of_tile + query / taken.n_heads];
                const bool is_empty = own.begin >= own.end || own.begin >= taken.first + RANGE ||
                                      own.end <= taken.first;
                const size_t head = taken.first_head + query % taken.n_heads;
                const size_t row_of_go = taken.row - first_row + query / taken.n_heads;
                const int at = n_ranges == 1 ? 0 : taken.first / RANGE - own.begin / RANGE;
                return is_empty
                           ? (float *)0
                           : sums + ((row_of_go * heads.n_heads + head) * n_ranges + at) * of_range;
            };
            const auto follows = [&](int query) {
                return n_ranges == 1 &&
                       taken.first > tile.rows[taken.of_tile + query / taken.n_heads].begin;
            };
            float *kept = threadIdx.x < taken.n_queries ? sums_of(threadIdx.x) : 0;
            if (kept) {
                float top = tile.tops[threadIdx.x], total = tile.totals[threadIdx.x];
                kept += v_width;
                if (follows(threadIdx.x)) { /* as in merge.cuh */
                    const float highest = top > kept[0] ? top : kept[0];
                    const float before = exponential(kept[0] - highest);
                    const float now = exponential(top - highest);
                    total = kept[1] * before + total * now;
                    top = highest;
                    tile.before[threadIdx.x] = before, tile.now[threadIdx.x] = now;
                }
                kept[0] = top, kept[1] = total;
            }
            if (n_ranges == 1)
                __syncthreads();
#pragma unroll
            for (int j = 0; j < PER_GROUP; j++) {
                const int query = j * GROUPS + group;
                float *own = query < taken.n_queries ? sums_of(query) : 0;
#pragma unroll
                for (int c = 0; c < COLUMNS; c++)
                    if (own && column + c < v_width) {
                        float &sum = own[column + c];
                        sum = follows(query)
                                  ? fmaf(out[j][c], tile.now[query], sum * tile.before[query])
                                  : out[j][c];
                    }
            }
            __syncthreads(); /* the range was read */
            if (threadIdx.x == 0)
                tile.taken.first += gridDim.y * RANGE;
            __syncthreads();
        }
    }

    /* Heads of `n_joined` tiles become whole blocks of codes, or rows of y. */
    if (!ends_last(counters + tile.unit, tile.n_ctas))
        return;
    const Attended to = {y, codes, scales, sums_of_codes, block};
    const int first_head = tile.first_joined;
    const int n_values = tile.n_joined * v_width, n_of_unit = block ? block : 32;
    const int n_units = (n_values + n_of_unit - 1) / n_of_unit;
    for (int i = threadIdx.x >> 5; i < tile.n_rows * n_units; i += WARPS) {
        const int row = i / n_units, lane = threadIdx.x & 31;
        const size_t own = tile.first_row + row;
        const Visible &seen = tile.rows[row];
        const int n_seen =
            seen.begin < seen.end ? (seen.end - 1) / RANGE - seen.begin / RANGE + 1 : 0;
        const auto head_of = [&](int number) {
            const size_t head = (own - first_row) * heads.n_heads + first_head + number;
            return Head{sums + head * n_ranges * (v_width + 2),
                        sinks ? sinks + first_head + number : 0, smaller(n_seen, n_ranges),
                        v_width};
        };
        const size_t before = (own * heads.n_heads + first_head) * v_width;
        if (block == 256)
            store_merged<8>(to, head_of, before, i % n_units * 256 + lane * 8, n_values);
        else
            store_merged<1>(to, head_of, before, i % n_units * 32 + lane, n_values);
    }
}
