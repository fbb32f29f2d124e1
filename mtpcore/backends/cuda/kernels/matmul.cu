/* y[t][r] = sum_k w[r][k] x[t][k] + bias[r], quantised weights times int8 activations.
 *
 * The blocks of a row are summed in eighths, each in ascending order. Products of a block are exact
 * in int32 (products of the tensor cores, 16 x 32 by 32 x 8, for 32 columns), and so are factors,
 * minima and what the codes' offset adds; one chain of fused multiply-adds takes them in, times the
 * two scales, and after it the block's minima. Then the eighths are added in order. The split depends
 * on the matrix alone, and a column of a product on its own token alone: a token's bits are the same
 * alone, in a batch, in tiles of any number, and beside any neighbours. Slots that are missing repeat
 * the first row of x, and nobody reads what comes of it.
 *
 * A warp makes 16 ROW_TILES outputs for 8 TOKEN_TILES slots (slots.cuh). Where EIGHTHS is 1, the 8
 * warps of a CTA share a tile, and each has an eighth of its blocks; else each has a tile, and goes
 * through all 8. With one row tile, weights come through a ring of pieces in shared memory, STAGES of
 * them under way for each warp while none takes registers. Weights lie as quantised.cuh says, x as
 * quantise.cuh does; weights are fetched before the launch before has ended (early.cuh).
 *
 * Up to three matrices of a type may share the rows of x: the CTAs of one come after those of the
 * other. Rows of the first one's results are y_pitch apart. Where there are rows of a `residual`, they are
 * added last.
 *
 * Where there are `counters` (of tiles of 8 slots) CTAs whose results belong together count which of them
 * ends last, and that one goes on with them. GATES: the first matrix makes gates of what the second makes,
 * and CTAs that have the same columns of both, as many as are a block of codes, make the codes of what is
 * let through. NORM, CENTRED_NORM: rows of the one tile are normalised (normalise.cuh), of the matrix
 * of that number among the three. PASSED: rows of that matrix become codes, or some columns of their
 * heads, as one that multiplies these reads them. HEADS: CTAs of a head of queries rotate it, or of keys,
 * and these are stored, as a head of values is (stored.cuh). JOINED: the products are parts of queries by
 * head, and for each head a CTA after theirs rotates the other part; these also store the keys of rows
 * (join.cuh), whose parts lie one after the other in `latent`. Where there are `shares`, CTAs that have the
 * same columns of slots mix these to rows (mix.cuh), of which there are up to 16, and NORM is of those.
 * Grid: (row tiles / ROW_TILES of each, or as many CTAs as have warps for these, tiles of slots from
 * `from_tile` on, heads). Block: 256.
 */
#include "copies.cuh"
#include "early.cuh"
#include "float16.cuh"
#include "functions.cuh"
#include "products.cuh"
#include "quantise.cuh"
#include "quantised.cuh"
#include "slots.cuh"
#if ROW_TILES == 1
#include "last.cuh"
#include "mix.cuh"
#include "normalise.cuh"
#include "stored.cuh"
#include "rotated.cuh"
#include "visible.cuh"
#include "join.cuh"
#endif

#define WARPS 8
#define WIDTH (8 * TOKEN_TILES)
#define PRELOADED (ROW_TILES == 1)
#define TILES_OF_CTA (ROW_TILES * (EIGHTHS == 1 ? 1 : WARPS))

/* Of products that other CTAs read. */
#if ROW_TILES == 1
#define ALONE
#else
#define ALONE __restrict__
#endif

/* Bytes of a block of a row tile, in each plane of weights. */
#define LOW_BYTES (STEPS * 32 * (int)sizeof(Low))
#define HIGH_BYTES (HIGH ? STEPS * 32 * (int)sizeof(High) : 0)
#define PART_BYTES (SETS * 16 * PARTS)
#define SCALE_BYTES ((MINIMA ? 32 : 16) * (int)sizeof(Scale))

/* Blocks of a piece, and pieces of a warp's ring. */
#define PIECE (BLOCK == 256 ? 1 : 4)
#define PIECE_BYTES (PIECE * (LOW_BYTES + HIGH_BYTES + PART_BYTES + SCALE_BYTES))
#define FITTING (48 * 1024 / WARPS / PIECE_BYTES)
#define STAGES (FITTING > 3 ? 3 : FITTING)

/* Of whole numbers below 2^22 this plus the number are the bits of the float of 3 * 2^22 and it. */
#define MAGIC 0x4b400000
#define MAGIC_VALUE 12582912.0f

/* Where weights of consecutive blocks of a row tile lie. */
struct Weights {
    const char *low, *high, *parts, *scales;

    __device__ __forceinline__ Weights at(size_t block) const
    {
        return {low + block * LOW_BYTES, high + block * HIGH_BYTES, parts + block * PART_BYTES,
                scales + block * SCALE_BYTES};
    }
};

/* Asks for the codes of consecutive blocks, all threads of the CTA together. */
static __device__ __forceinline__ void prefetch_blocks(const Weights &all, size_t first, size_t n)
{
    prefetch_all(all.low + first * LOW_BYTES, n * LOW_BYTES);
    if (HIGH)
        prefetch_all(all.high + first * HIGH_BYTES, n * HIGH_BYTES);
}

/* Blocks of x before those of this lane's row, and of the two rows that its results are of. */
struct Rows {
    unsigned fed, taken[2];
};

/* What this lane reads of a block of x: its codes of 32 columns, or of 64 in each word of four. */
#if BLOCK == 256
typedef uint4 Codes;
#define N_CODES 4
#else
typedef uint2 Codes;
#define N_CODES 1
#endif
struct Read {
    Codes codes[N_CODES];
    float scales[2];
    uint2 sums;
};

struct Inputs {
    const Codes *codes;
    const float *scales;
    const unsigned *sums;

    __device__ __forceinline__ Codes codes_of(const Rows &rows, int block, int i) const
    {
        return codes[((size_t)(rows.fed + block) * 4 + (threadIdx.x & 3)) * N_CODES + i];
    }

    __device__ __forceinline__ void read(Read &to, const Rows &rows, int block) const
    {
#pragma unroll
        for (int i = 0; i < 2; i++)
            to.scales[i] = scales[rows.taken[i] + block];
#if BLOCK == 256
        if (MINIMA || OFFSET)
            to.sums = ((const uint2 *)sums)[(size_t)(rows.fed + block) * 4 + (threadIdx.x & 3)];
#else
        if (MINIMA || OFFSET)
            to.sums = {sums[rows.taken[0] + block], sums[rows.taken[1] + block]};
#endif
#if PRELOADED
#pragma unroll
        for (int i = 0; i < N_CODES; i++)
            to.codes[i] = codes_of(rows, block, i);
#endif
    }
};

/* Starts copying consecutive blocks into a piece, as planes one after the other; `left` there are. */
__device__ __forceinline__ void fetch(char *piece, const Weights &from, int left, int lane)
{
    const int n = PIECE == 1 || left > PIECE ? PIECE : left;
    const char *planes[4] = {from.low, from.high, from.parts, from.scales};
    const int sizes[4] = {LOW_BYTES, HIGH_BYTES, PART_BYTES, SCALE_BYTES};
#pragma unroll
    for (int plane = 0; plane < 4; plane++) {
#pragma unroll
        for (int i = 0; i < (PIECE * sizes[plane] + 511) / 512; i++) {
            const int at = i * 512 + lane * 16;
            if (at < n * sizes[plane])
                copy_later(piece + at, planes[plane] + at);
        }
        piece += PIECE * sizes[plane];
    }
}

__device__ __forceinline__ Weights in_piece(const char *piece)
{
    const char *high = piece + PIECE * LOW_BYTES, *parts = high + PIECE * HIGH_BYTES;
    return {piece, high, parts, parts + PIECE * PART_BYTES};
}

#if BLOCK == 256
/* A row's factors of 64 columns, and of 256. */
#if SUB == 32
typedef unsigned short Factors;
typedef uint2 AllFactors;
#else
typedef unsigned Factors;
typedef uint4 AllFactors;
#endif

__device__ __forceinline__ unsigned some_of(const AllFactors &all, int pair)
{
#if SUB == 32
    return (pair < 2 ? all.x : all.y) >> pair % 2 * 16;
#else
    return pair == 0 ? all.x : pair == 1 ? all.y : pair == 2 ? all.z : all.w;
#endif
}

/* Adds the products of one of two steps, each part's times its factor. */
static __device__ __forceinline__ void add_products(int (&whole)[TOKEN_TILES][4],
                                                    const unsigned (&a)[4],
                                                    const Codes (&codes)[TOKEN_TILES],
                                                    const unsigned (&factors)[2], int step)
{
    const int zeros[4] = {};
#pragma unroll
    for (int part = 0; part < 32 / SUB; part++) {
        int own[2];
#pragma unroll
        for (int half = 0; half < 2; half++)
            own[half] = factor_of(factors[half] >> (step * (32 / SUB) + part) * 8);
#pragma unroll
        for (int t = 0; t < TOKEN_TILES; t++) {
            const unsigned b0 = step ? codes[t].z : codes[t].x;
            const unsigned b1 = step ? codes[t].w : codes[t].y;
            int product[4];
#if SUB == 32
            multiply(product, a, b0, b1, zeros);
#else
            multiply_half(product, a[2 * part], a[2 * part + 1], part ? b1 : b0, zeros);
#endif
#pragma unroll
            for (int i = 0; i < 4; i++)
                whole[t][i] += product[i] * own[i >> 1];
        }
    }
}

/* A block of 256 columns: each part's product times its factor; then the minima. */
static __device__ __forceinline__ void add_block(float (&sum)[ROW_TILES][TOKEN_TILES][4],
                                                 const Weights (&w)[ROW_TILES], const Inputs &in,
                                                 const Rows (&rows)[TOKEN_TILES],
                                                 Read (&x)[TOKEN_TILES], int block)
{
    const int lane = threadIdx.x & 31, g = lane >> 2;
    int whole[ROW_TILES][TOKEN_TILES][4] = {};
#if PRELOADED
    AllFactors all[2];
#pragma unroll
    for (int half = 0; half < 2; half++)
        all[half] = ((const AllFactors *)w[0].parts)[g + 8 * half];
#endif
#pragma unroll(PRELOADED ? STEPS / 2 : 1)
    for (int pair = 0; pair < STEPS / 2; pair++) { /* of steps */
        Codes codes[TOKEN_TILES];
#pragma unroll
        for (int t = 0; t < TOKEN_TILES; t++)
            codes[t] = PRELOADED ? x[t].codes[pair] : in.codes_of(rows[t], block, pair);
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++) {
            unsigned factors[2];
#pragma unroll
            for (int half = 0; half < 2; half++)
#if PRELOADED
                factors[half] = some_of(all[half], pair);
#else
                factors[half] = ((const Factors *)w[r].parts)[(g + 8 * half) * 4 + pair];
#endif
#pragma unroll
            for (int step = 0; step < 2; step++) {
                unsigned a[4];
                unpack(a, (const Low *)w[r].low, (const High *)w[r].high,
                       (2 * pair + step) * 32 + lane);
                add_products(whole[r], a, codes, factors, step);
            }
        }
    }
#if !PRELOADED
#pragma unroll
    for (int t = 0; t < TOKEN_TILES; t++)
        in.read(x[t], rows[t], block);
#endif
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
#if MINIMA || OFFSET
        /* Columns 4q.. of 16: the minima of as many parts of rows g and g + 8, or their factors, of
         * which each counts for every code that is OFFSET too large. */
        const int q = lane & 3;
        unsigned each[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const unsigned *row = (const unsigned *)w[r].parts + (g + 8 * half) * (PARTS / 4);
#if SUB == 32
            const unsigned two = row[16 * (PARTS / 4) + q / 2];
            each[half] = __byte_perm(two, two, q % 2 ? 0x3322u : 0x1100u);
#else
            each[half] = NIBBLES ? row[q] >> 4 & EACH_BYTE(15u) : row[q];
#endif
        }
#endif
        const Scale *own = (const Scale *)w[r].scales + g;
#pragma unroll
        for (int t = 0; t < TOKEN_TILES; t++) {
            int least[4] = {};
#if MINIMA || OFFSET
            const int zeros[4] = {};
            multiply_half(least, each[0], each[1], x[t].sums.y, zeros);
#pragma unroll
            for (int i = 0; i < 4; i++)
                least[i] *= 256;
            multiply_half(least, each[0], each[1], x[t].sums.x, least);
#endif
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int half = i >> 1 << 3;
                const float x_scale = x[t].scales[i & 1];
                const int exact = MINIMA ? whole[r][t][i] : whole[r][t][i] - OFFSET * least[i];
                float &to = sum[r][t][i];
                to = fmaf((float)exact, scale_of(own[half]) * x_scale, to);
                if (MINIMA)
                    to = fmaf(-(float)least[i], scale_of(own[16 + half]) * x_scale, to);
            }
        }
    }
}
#else
/* A block of 32 columns: one product, whose number is below 2^20. */
static __device__ __forceinline__ void add_block(float (&sum)[ROW_TILES][TOKEN_TILES][4],
                                                 const Weights (&w)[ROW_TILES], const Inputs &in,
                                                 const Rows (&rows)[TOKEN_TILES],
                                                 Read (&x)[TOKEN_TILES], int block)
{
    const int lane = threadIdx.x & 31;
#if !PRELOADED
#pragma unroll
    for (int t = 0; t < TOKEN_TILES; t++)
        in.read(x[t], rows[t], block);
#endif
    unsigned a[ROW_TILES][4];
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++)
        unpack(a[r], (const Low *)w[r].low, (const High *)w[r].high, lane);
#pragma unroll
    for (int t = 0; t < TOKEN_TILES; t++) {
        const Codes codes = PRELOADED ? x[t].codes[0] : in.codes_of(rows[t], block, 0);
        int sums[2] = {};
        if (MINIMA || OFFSET)
            sums[0] = (int)x[t].sums.x, sums[1] = (int)x[t].sums.y;
#pragma unroll
        for (int r = 0; r < ROW_TILES; r++) {
            const Scale *own = (const Scale *)w[r].scales + (lane >> 2);
            int product[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                product[i] = MAGIC - OFFSET * sums[i & 1];
            multiply(product, a[r], codes.x, codes.y, product);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int half = i >> 1 << 3;
                const float x_scale = x[t].scales[i & 1];
                const float exact = __uint_as_float((unsigned)product[i]) - MAGIC_VALUE;
                float &to = sum[r][t][i];
                to = fmaf(exact, scale_of(own[half]) * x_scale, to);
                if (MINIMA)
                    to = fmaf(-(float)-sums[i & 1], scale_of(own[16 + half]) * x_scale, to);
            }
        }
    }
}
#endif

#if ROW_TILES == 1
/* Starts copying the first pieces of a warp's blocks. */
static __device__ __forceinline__ void fill(char *ring, const Weights &from, int n, int lane)
{
#pragma unroll
    for (int stage = 0; stage < STAGES; stage++) {
        const int left = n - stage * PIECE;
        if (left > 0)
            fetch(ring + stage * PIECE_BYTES, from.at(stage * PIECE), left, lane);
        end_group();
    }
}
#endif

/* Blocks before those of a row tile. */
static __device__ __forceinline__ size_t blocks_before(int matrix, int n_tiles, int tile,
                                                       int n_blocks)
{
    return (size_t)((unsigned)matrix * n_tiles + tile) * (unsigned)n_blocks;
}

static __device__ __forceinline__ int n_ctas(int n_rows)
{
    return (n_rows + 16 * TILES_OF_CTA - 1) / (16 * TILES_OF_CTA);
}

#if ROW_TILES == 1
static_assert(WIDTH == WARPS, "a warp makes the codes of a slot");
static_assert(STAGES * PIECE_BYTES >= 2 * 256 * (int)sizeof(float), "a block of two matrices");
#define MOST_LATENT 4096 /* values of a latent row */
static_assert(WARPS * STAGES * PIECE_BYTES >= (2 * ALL_WARPS + MOST_LATENT) * (int)sizeof(float),
              "a latent row");

/* What follows products. */
enum { GATES, NORM, CENTRED_NORM, PASSED, HEADS, JOINED, NOTHING };
/* What the heads of a matrix are. */
enum { OTHERS, QUERIES, KEYS, VALUES };

/* Products, or where there are others what they let through as gates of these, and their codes. */
struct Coded {
    const float *of, *others;
    signed char *codes;
    float *scales;
    short *sums;
    int kind;
    float limit, offset;
};

/* Where heads of a row go: to `rotated`, or to memory of a type. */
struct Head {
    const float *from, *cosines, *sines;
    float *rotated;
    char *rows;
    int type, n_heads, width, number, n_pairs;
    bool are_neighbours;
};

/* Rotates a head, unless it is one of values, and stores it, unless it is one of queries; a warp. */
static __device__ __forceinline__ void store_head(const Head &head, int kind)
{
#pragma unroll 1
    for (int part = 0; part < n_scales(head.width); part++) {
        float value[2];
        for (int i = 0; i < 2; i++) {
            const int d = part * CODES + 2 * (threadIdx.x & 31) + i;
            value[i] = d >= head.width  ? 0.0f
                       : kind == VALUES ? head.from[d]
                                        : rotated(head.cosines, head.sines, head.are_neighbours,
                                                  head.from, d, head.n_pairs);
            if (kind == QUERIES && d < head.width)
                head.rotated[d] = value[i];
        }
        if (kind != QUERIES)
            store_part(head.type, head.rows, head.n_heads, head.width, head.number, part, value);
    }
}

/* Makes the codes of a block, which begins at a value and becomes number `at` of all; a warp, with
 * memory of its own. */
template <int N>
static __device__ __forceinline__ void store_codes(const Coded &coded, float *memory, size_t begin,
                                                   size_t at)
{
    const int lane = threadIdx.x & 31;
    const size_t first = begin + lane * N;
    float value[N], other[N];
    if constexpr (N == 8)
        load_eight(value, coded.of + first);
    else
        value[0] = coded.of[first];
    if (coded.others) {
        if constexpr (N == 8)
            load_eight(other, coded.others + first);
        else
            other[0] = coded.others[first];
        float *own = memory + lane * N, *others = own + 32 * N; /* no other lane's */
#pragma unroll
        for (int i = 0; i < N; i++)
            own[i] = value[i], others[i] = other[i];
#pragma unroll 1 /* much code */
        for (int i = 0; i < N; i++)
            own[i] = gated(coded.kind, own[i], others[i], coded.limit, coded.offset);
#pragma unroll
        for (int i = 0; i < N; i++)
            value[i] = own[i];
    }
    store_block(value, at, coded.codes, coded.scales, coded.sums);
}
#endif

extern "C" __global__ void __launch_bounds__(32 * WARPS, ROW_TILES == 1 ? 3 : 1)
    matmul(const char *__restrict__ low, const char *__restrict__ high,
           const char *__restrict__ parts, const char *__restrict__ scales, const Codes *x,
           const float *x_scales, const unsigned *x_sums, const float *__restrict__ bias,
           const int *matrices, const int *members, float *ALONE y, int n_rows, int n_blocks,
           int n_slots, int n_ranks, int from_tile, int y_begin, int y_pitch, int follows,
           const float *residual = nullptr, const char *__restrict__ low_2 = nullptr,
           const char *__restrict__ high_2 = nullptr, const char *__restrict__ parts_2 = nullptr,
           const char *__restrict__ scales_2 = nullptr, const float *__restrict__ bias_2 = nullptr,
           float *ALONE y_2 = nullptr, int n_rows_2 = 0, const char *__restrict__ low_3 = nullptr,
           const char *__restrict__ high_3 = nullptr, const char *__restrict__ parts_3 = nullptr,
           const char *__restrict__ scales_3 = nullptr, const float *__restrict__ bias_3 = nullptr,
           float *ALONE y_3 = nullptr, int n_rows_3 = 0, unsigned *counters = nullptr,
           signed char *codes = nullptr, float *scales_of_codes = nullptr,
           short *sums_of_codes = nullptr, int of_codes = 0, int kind = 0, float limit = 0,
           float offset = 0, const float *__restrict__ weight_of_norm = nullptr,
           const float *__restrict__ bias_of_norm = nullptr, float *__restrict__ normed = nullptr,
           float eps = 0, int kinds = 0, const float *cos_sin = nullptr,
           float *rotated_q = nullptr, const int *seqs = nullptr, const int *places = nullptr,
           const int *tables = nullptr, char *memory = nullptr, long long v_begin = 0,
           long long pitch = 0, int n_entries = 0, int n_pairs = 0, int are_neighbours = 0,
           int type = 0, int k_width = 0, int v_width = 0, int part_begin = 0, int part_width = 0,
           int part_apart = 0, const float *shares = nullptr,
           const float *first_residual = nullptr, const float *second_residual = nullptr,
           float *mixed_y = nullptr, int n_mixed = 0, const float *queries = nullptr,
           int q_begin = 0, int q_apart = 0, const float *latent = nullptr, int latent_begin = 0,
           int latent_apart = 0)
{
#if ROW_TILES == 1
    __shared__ uint4 rings[WARPS][STAGES * PIECE_BYTES / 16];
    const float *gates = y, *others = y_2;
    if (follows == JOINED && blockIdx.x == gridDim.x - 1) {
        wait_for_launches();
        let_next_begin();
        const Norm norm = {weight_of_norm, nullptr, nullptr,        nullptr,
                           nullptr,        k_width, (float)k_width, eps};
        const int n = n_slots / (int)gridDim.z, head = blockIdx.z;
        for (int i = threadIdx.x; i < n * v_width; i += 32 * WARPS) {
            const int row = i / v_width, d = i % v_width;
            const size_t at = (size_t)row * gridDim.z + head;
            const float *own = cos_sin + (size_t)row * 2 * n_pairs;
            y[at * y_pitch + y_begin + n_rows + d] = rotated(
                own, own + n_pairs, are_neighbours, queries + at * q_apart + q_begin, d, n_pairs);
        }
#pragma unroll 1
        for (int row = head; row < n; row += gridDim.z) {
            const float *both = latent + (size_t)row * latent_apart + latent_begin;
            const float *own = cos_sin + (size_t)row * 2 * n_pairs;
            char *rows =
                memory + slot_of_place(tables + (size_t)seqs[row] * n_entries, places[row]) * pitch;
            store_joined(norm, both, both + k_width, (float *)rings + 2 * ALL_WARPS, row, own,
                         own + n_pairs, are_neighbours, n_pairs, type, rows, v_width,
                         (float *)rings);
        }
        return;
    }
#elif EIGHTHS == 1
    __shared__ uint4 rings[WARPS][16 * WIDTH / 4];
#endif
    int number = blockIdx.x, which = 0; /* of the CTAs of its matrix, and which one that is */
    if (number >= n_ctas(n_rows)) {
        number -= n_ctas(n_rows), which++;
        low = low_2, high = high_2, parts = parts_2, scales = scales_2, n_rows = n_rows_2;
        if (number >= n_ctas(n_rows)) {
            number -= n_ctas(n_rows), which++;
            low = low_3, high = high_3, parts = parts_3, scales = scales_3, n_rows = n_rows_3;
        }
    }
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int g = lane >> 2, q = lane & 3;
    const int n_tiles = (n_rows + 15) / 16;
    const int first_tile = (EIGHTHS == 1 ? number : number * WARPS + warp) * ROW_TILES;
    const int tile = from_tile + blockIdx.y;
    int matrix = blockIdx.z;
    const Weights all = {low, high, parts, scales};
    const Inputs in = {x, x_scales, x_sums};

#if ROW_TILES == 1
    const int begin = n_blocks * warp / WARPS, end = n_blocks * (warp + 1) / WARPS;
    size_t first = blocks_before(matrix, n_tiles, first_tile, n_blocks);
    char *ring = (char *)rings[warp];
    if (!matrices) /* which one it is, launches before have written */
        fill(ring, all.at(first + begin), end - begin, lane);
    if (!matrices && n_blocks > WARPS * STAGES * PIECE)
        prefetch_blocks(all, first, n_blocks);
#else
    if (!matrices) {
        const int left = n_tiles - number * TILES_OF_CTA;
        prefetch_blocks(all, blocks_before(matrix, n_tiles, number * TILES_OF_CTA, n_blocks),
                        (size_t)(left < TILES_OF_CTA ? left : TILES_OF_CTA) * n_blocks);
    }
#endif
    wait_for_launches();
    let_next_begin();
    if (matrices) {
        matrix = matrices[tile];
        if (matrix < 0)
            return;
#if ROW_TILES == 1
        first = blocks_before(matrix, n_tiles, first_tile, n_blocks);
        fill(ring, all.at(first + begin), end - begin, lane);
#endif
    }
#if ROW_TILES > 1
    if (first_tile >= n_tiles) /* a whole warp */
        return;
    size_t first[ROW_TILES]; /* a tile that is missing repeats the last one */
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
        const int at = first_tile + r < n_tiles ? first_tile + r : n_tiles - 1;
        first[r] = blocks_before(matrix, n_tiles, at, n_blocks);
    }
#endif

    /* This lane feeds row g of x to a product, and receives slots 2q and 2q + 1 from it. */
    const Slots slots = slots_of(members, tile, WIDTH, n_slots, n_ranks);
    Rows rows[TOKEN_TILES];
#pragma unroll
    for (int t = 0; t < TOKEN_TILES; t++) {
        rows[t].fed = slots.row(8 * t + g) * n_blocks;
#pragma unroll
        for (int i = 0; i < 2; i++)
            rows[t].taken[i] = slots.row(8 * t + 2 * q + i) * n_blocks;
    }

#if ROW_TILES == 1
    float sum[1][TOKEN_TILES][4] = {};
    int stage = 0;
#pragma unroll 1
    for (int block = begin; block < end; block += PIECE) {
        Read read[PIECE][TOKEN_TILES];
        const int n = end - block;
#pragma unroll
        for (int i = 0; i < PIECE; i++)
#pragma unroll
            for (int t = 0; t < TOKEN_TILES; t++)
                in.read(read[i][t], rows[t], i < n ? block + i : block);
        char *piece = ring + stage * PIECE_BYTES;
        wait_for_groups<STAGES - 1>();
        __syncwarp(); /* what all lanes have copied is there */
#pragma unroll
        for (int i = 0; i < PIECE; i++) {
            const Weights here[1] = {in_piece(piece).at(i)};
            if (i < n)
                add_block(sum, here, in, rows, read[i], block + i);
        }
        __syncwarp(); /* all lanes have read the piece */
        const int next = block + STAGES * PIECE, left = end - next;
        if (left > 0)
            fetch(piece, all.at(first + next), left, lane);
        end_group();
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
#else
    float total[ROW_TILES][TOKEN_TILES][4], sum[ROW_TILES][TOKEN_TILES][4];
#pragma unroll 1
    for (int eighth = 0; eighth < EIGHTHS; eighth++) {
        const int own = EIGHTHS == 1 ? warp : eighth;
        const int begin = n_blocks * own / WARPS, end = n_blocks * (own + 1) / WARPS;
#pragma unroll
        for (int i = 0; i < ROW_TILES * TOKEN_TILES * 4; i++)
            (&sum[0][0][0])[i] = 0.0f;
#pragma unroll(BLOCK == 32 && EIGHTHS > 1 ? 2 : 1)
        for (int block = begin; block < end; block++) {
            Read read[TOKEN_TILES];
            Weights here[ROW_TILES];
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++)
                here[r] = all.at(first[r] + block);
            add_block(sum, here, in, rows, read, block);
        }
#pragma unroll
        for (int i = 0; i < ROW_TILES * TOKEN_TILES * 4; i++)
            (&total[0][0][0])[i] =
                eighth == 0 ? (&sum[0][0][0])[i] : (&total[0][0][0])[i] + (&sum[0][0][0])[i];
    }
#endif

    /* Not before, or they take registers meanwhile. */
    if (which)
        bias = which == 1 ? bias_2 : bias_3, y = which == 1 ? y_2 : y_3;
    else
        y += y_begin;
    const int pitch_of_y = which ? n_rows : y_pitch;
#if EIGHTHS == 1
    float *partial = (float *)rings[warp];
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
#pragma unroll
        for (int t = 0; t < TOKEN_TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                partial[(8 * t + 2 * q + (i & 1)) * 16 + g + (i >> 1) * 8] = sum[r][t][i];
        __syncthreads();
#pragma unroll
        for (int from = 0; from < 16 * WIDTH; from += 32 * WARPS) {
            const int i = from + threadIdx.x, row = (first_tile + r) * 16 + (i & 15);
            if (i >= 16 * WIDTH || row >= n_rows)
                continue;
            const int slot = slots.slot(i >> 4);
            if (slot < 0)
                continue;
            float value = ((const float *)rings[0])[i];
#pragma unroll
            for (int other = 1; other < WARPS; other++)
                value += ((const float *)rings[other])[i];
            if (bias)
                value += bias[(size_t)matrix * n_rows + row];
            const size_t at = (size_t)slot * pitch_of_y + row;
            y[at] = residual ? value + residual[at] : value;
        }
        __syncthreads();
    }
#else
#pragma unroll
    for (int t = 0; t < TOKEN_TILES; t++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int slot = slots.slot(8 * t + 2 * q + i);
#pragma unroll
            for (int r = 0; r < ROW_TILES; r++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int row = (first_tile + r) * 16 + g + half * 8;
                    if (slot < 0 || row >= n_rows)
                        continue;
                    float value = total[r][t][half * 2 + i];
                    if (bias)
                        value += bias[(size_t)matrix * n_rows + row];
                    const size_t at = (size_t)slot * pitch_of_y + row;
                    y[at] = residual ? value + residual[at] : value;
                }
        }
#endif

#if ROW_TILES == 1
    if (!counters)
        return;
    if (follows == HEADS) {
        const int head_kind = kinds >> 2 * which & 3;
        const int width = head_kind == VALUES ? v_width : k_width, n_of_head = width / 16;
        const int head = number / n_of_head, row = threadIdx.x >> 5;
        if (head_kind == OTHERS ||
            !ends_last(counters + blockIdx.x - number % n_of_head, n_of_head) || row >= n_slots)
            return;
        const size_t at = (size_t)row * n_rows + head * width;
        char *rows =
            memory + slot_of_place(tables + (size_t)seqs[row] * n_entries, places[row]) * pitch;
        cos_sin += (size_t)row * 2 * n_pairs;
        store_head({y + at, cos_sin, cos_sin + n_pairs, rotated_q + at,
                    head_kind == VALUES ? rows + v_begin : rows, type, n_rows / width, width, head,
                    n_pairs, are_neighbours != 0},
                   head_kind);
        return;
    }
    if (shares) {
        /* Tiles that slots need count by columns, after the norm's counter; a thread mixes a value. */
        int n_used = 0;
        for (int i = 0; i < (int)gridDim.y; i++)
            n_used += matrices[i] >= 0;
        if (!ends_last(counters + 1 + number, n_used))
            return;
        n_slots /= n_mixed;
        const int row = threadIdx.x >> 4, column = number * 16 + (threadIdx.x & 15);
        const size_t at = (size_t)row * n_rows + column;
        if (row < n_slots && column < n_rows)
            mixed_y[at] = mixed(y + (size_t)row * n_mixed * n_rows + column, n_mixed, n_rows,
                                shares + row * n_mixed, first_residual, second_residual, at);
        y = mixed_y;
    }
    if (follows == NOTHING)
        return;
    if (follows == NORM || follows == CENTRED_NORM) {
        if (which != kinds || !ends_last(counters, n_ctas(n_rows)))
            return;
        const Norm norm = {weight_of_norm, bias_of_norm, codes,         scales_of_codes,
                           sums_of_codes,  n_rows,       (float)n_rows, eps};
        float *partial = (float *)rings[0] + 256; /* after what the first warp has */
#pragma unroll 1
        for (int row = 0; row < n_slots; row++) {
            const size_t begin = (size_t)row * n_rows;
            normalise_row<1>(norm, follows == CENTRED_NORM, of_codes, y + begin,
                             normed ? normed + begin : normed, row, partial + row * 2 * ALL_WARPS,
                             (float *)rings[threadIdx.x >> 5], [] {});
        }
        return;
    }
    const int n_of_block = of_codes / 16;
    int own, of_row, row = slots.slot(warp); /* of blocks; the row is -1 where it is missing */
    size_t from;                             /* where the block is in the products */
    if (follows == PASSED) {
        if (which != kinds)
            return;
        const int width = n_rows * (int)gridDim.z, column = matrix * n_rows + number * 16;
        const int part = column / part_apart, of_part = column % part_apart - part_begin;
        if (of_part < 0 || of_part >= part_width)
            return;
        own = (part * part_width + of_part) / of_codes;
        of_row = width / part_apart * part_width / of_codes;
        if (!ends_last(counters + own, n_of_block))
            return;
        row = row < 0 ? row : row / (int)gridDim.z;
        from = (size_t)row * width + column - of_part % of_codes;
        gates = y, others = nullptr;
    } else {
        own = number / n_of_block, of_row = n_tiles / n_of_block;
        if (!ends_last(counters + (size_t)tile * of_row + own, 2 * n_of_block))
            return;
        from = ((size_t)row * of_row + own) * of_codes;
    }
    if (row < 0) /* a whole warp */
        return;
    const Coded made = {gates, others, codes, scales_of_codes, sums_of_codes, kind, limit, offset};
    const size_t at = (size_t)row * of_row + own;
    if (of_codes == 256)
        store_codes<8>(made, (float *)rings[warp], from, at);
    else
        store_codes<1>(made, (float *)rings[warp], from, at);
#endif
}
