/* y[t][r] = sum_k w[r][k] x[t][k] + bias[r] of few slots, quantised weights times int8 activations.
 *
 * The bits of matmul.cu: the 8 warps of a CTA share a tile of 16 rows and 8 slots (slots.cuh), each has an
 * eighth of its blocks, and the eighths are added in order. A CTA makes every so many-th tile. Weights come
 * through a ring of pieces in shared memory, STAGES of them under way for each warp while none takes
 * registers: those of the next tile while the results of one are added up. The first ones are fetched
 * before the launch before has ended (early.cuh).
 *
 * Up to three matrices of a type may share the rows of x: the tiles of one come after those of the
 * other. Rows of the first one's results are y_pitch apart. Where there are rows of a `residual`, they are
 * added last.
 *
 * Where there are `counters` (of tiles of 8 slots) tiles whose results belong together are counted, and
 * the CTA that makes the last one goes on with them. GATES: the first matrix makes gates of what the second
 * makes, and of tiles that have the same columns of both, as many as are a block of codes, come the codes of
 * what is let through. NORM, CENTRED_NORM: rows of the one tile are normalised (normalise.cuh), of the
 * matrix of that number among the three. PASSED: rows of that matrix become codes, or some columns of their
 * heads, as one that multiplies these reads them. HEADS: a head of queries is rotated, or of keys, and these
 * are stored, as a head of values is (stored.cuh). JOINED: the products are parts of queries by head, and
 * for each head a CTA after the others rotates the other part; these also store the keys of rows
 * (join.cuh), whose parts lie one after the other in `latent`. Where there are `shares`, tiles that have the
 * same columns of slots are mixed to rows (mix.cuh), of which there are up to 16, and NORM is of those.
 * Grid: (as many CTAs as share the tiles of rows, tiles of slots from `from_tile` on, heads). Block: 256.
 */
#define ROW_TILES 1
#define TOKEN_TILES 1
#define PRELOADED 1
#include "arena.cuh"
#include "copies.cuh"
#include "early.cuh"
#include "float16.cuh"
#include "functions.cuh"
#include "products.cuh"
#include "quantise.cuh"
#include "quantised.cuh"
#include "slots.cuh"
#include "blocks.cuh"
#include "last.cuh"
#include "mix.cuh"
#include "normalise.cuh"
#include "stored.cuh"
#include "rotated.cuh"
#include "visible.cuh"
#include "join.cuh"

/* Blocks of a piece, and floats that a warp has besides its ring. */
#define PIECE (BLOCK == 256 ? 1 : 4)
#define PIECE_BYTES (PIECE * BLOCK_BYTES)
#define OWN 512

/* Registers for three CTAs of a multiprocessor; or a few more for two of them and one of the next launch,
 * where parts are many, or shared memory has no room for three. */
#if SUB == 16 || __CUDA_ARCH__ < 900
#define LIMITS __maxnreg__(88)
#else
#define LIMITS __launch_bounds__(32 * WARPS, 3)
#endif

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

/* A tile of one of the matrices. */
struct Work {
    int number, which, n_rows;
    Weights weights;
};

static_assert(WIDTH == WARPS, "a warp makes the codes of a slot");
static_assert(OWN >= 2 * 256, "a block of two matrices");
static_assert(OWN >= 256 + 2 * ALL_WARPS * WIDTH, "what normalises rows");
static_assert(WARPS * (STAGES * PIECE_BYTES + OWN * (int)sizeof(float)) == SHARED, "of a launch");
#define MOST_LATENT 4096 /* values of a latent row */
static_assert(SHARED >= (2 * ALL_WARPS + MOST_LATENT) * (int)sizeof(float), "a latent row");

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

extern "C" __global__ void LIMITS matmul_few(
    const char *__restrict__ low, const char *__restrict__ high, const char *__restrict__ parts,
    const char *__restrict__ scales, const Codes *x, const float *x_scales, const unsigned *x_sums,
    const float *__restrict__ bias, const int *matrices, const int *members, float *y, int n_rows,
    int n_blocks, int n_slots, int n_ranks, int from_tile, int y_begin, int y_pitch, int follows,
    const float *residual = nullptr, const char *__restrict__ low_2 = nullptr,
    const char *__restrict__ high_2 = nullptr, const char *__restrict__ parts_2 = nullptr,
    const char *__restrict__ scales_2 = nullptr, const float *__restrict__ bias_2 = nullptr,
    float *y_2 = nullptr, int n_rows_2 = 0, const char *__restrict__ low_3 = nullptr,
    const char *__restrict__ high_3 = nullptr, const char *__restrict__ parts_3 = nullptr,
    const char *__restrict__ scales_3 = nullptr, const float *__restrict__ bias_3 = nullptr,
    float *y_3 = nullptr, int n_rows_3 = 0, unsigned *counters = nullptr,
    signed char *codes = nullptr, float *scales_of_codes = nullptr, short *sums_of_codes = nullptr,
    int of_codes = 0, int kind = 0, float limit = 0, float offset = 0,
    const float *__restrict__ weight_of_norm = nullptr,
    const float *__restrict__ bias_of_norm = nullptr, float *__restrict__ normed = nullptr,
    float eps = 0, int kinds = 0, const float *cos_sin = nullptr, float *rotated_q = nullptr,
    const int *seqs = nullptr, const int *places = nullptr, const int *tables = nullptr,
    char *memory = nullptr, long long v_begin = 0, long long pitch = 0, int n_entries = 0,
    int n_pairs = 0, int are_neighbours = 0, int type = 0, int k_width = 0, int v_width = 0,
    int part_begin = 0, int part_width = 0, int part_apart = 0, const float *shares = nullptr,
    const float *first_residual = nullptr, const float *second_residual = nullptr,
    float *mixed_y = nullptr, int n_mixed = 0, const float *queries = nullptr, int q_begin = 0,
    int q_apart = 0, const float *latent = nullptr, int latent_begin = 0, int latent_apart = 0)
{
    ARENA;
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
            store_joined(norm, both, both + k_width, (float *)arena + 2 * ALL_WARPS, row, own,
                         own + n_pairs, are_neighbours, n_pairs, type, rows, v_width,
                         (float *)arena);
        }
        return;
    }
    /* A number among the tiles of all matrices becomes one among those of its own. */
    const int n_first = n_tiles_of(n_rows), n_second = n_tiles_of(n_rows_2);
    const int n_work = n_first + n_second + n_tiles_of(n_rows_3);
    const auto find = [&](int number) -> Work {
        if (number < n_first)
            return {number, 0, n_rows, {low, high, parts, scales}};
        number -= n_first;
        if (number < n_second)
            return {number, 1, n_rows_2, {low_2, high_2, parts_2, scales_2}};
        return {number - n_second, 2, n_rows_3, {low_3, high_3, parts_3, scales_3}};
    };
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int g = lane >> 2, q = lane & 3;
    const int tile = from_tile + blockIdx.y, apart = gridDim.x - (follows == JOINED);
    const int begin = n_blocks * warp / WARPS, end = n_blocks * (warp + 1) / WARPS;
    const Inputs in = {x, x_scales, x_sums};
    int matrix = blockIdx.z;
    char *ring = (char *)arena + warp * STAGES * PIECE_BYTES;
    float *of_first = (float *)((char *)arena + WARPS * STAGES * PIECE_BYTES);
    float *of_warp = of_first + warp * OWN;

    /* What is fetched next: blocks `ahead` .. of the tile of that number. */
    int coming = begin < end ? blockIdx.x : n_work, ahead = begin;
    const auto fetch_next = [&](char *piece) {
        if (coming < n_work) {
            const Work work = find(coming);
            const size_t before = blocks_before(matrix, work.n_rows, work.number, n_blocks);
            fetch(piece, work.weights.at(before + ahead), end - ahead, lane);
            ahead += PIECE;
            if (ahead >= end)
                coming += apart, ahead = begin;
        }
        end_group();
    };
    const auto fill = [&] {
#pragma unroll 1
        for (int stage = 0; stage < STAGES; stage++)
            fetch_next(ring + stage * PIECE_BYTES);
    };
    if (!matrices) { /* which one it is, launches before have written */
        fill();
        if (n_blocks > WARPS * STAGES * PIECE) {
            const Work work = find(blockIdx.x);
            prefetch_blocks(work.weights, blocks_before(matrix, work.n_rows, work.number, n_blocks),
                            n_blocks);
        }
    }
    wait_for_launches();
    let_next_begin();
    if (matrices) {
        matrix = matrices[tile];
        if (matrix < 0)
            return;
        fill();
    }

    /* This lane feeds row g of x to a product, and receives slots 2q and 2q + 1 from it. */
    const Slots slots = slots_of(members, tile, WIDTH, n_slots, n_ranks);
    const auto row_of = [&](int slot) { return slots.row(slot) * n_blocks; };
    const Rows rows[1] = {{row_of(g), {row_of(2 * q), row_of(2 * q + 1)}}};

    int stage = 0;
#pragma unroll 1
    for (int turn = blockIdx.x; turn < n_work; turn += apart) {
        float sum[1][1][4] = {};
#pragma unroll 1
        for (int block = begin; block < end; block += PIECE) {
            Read read[PIECE][1];
            const int n = end - block;
#pragma unroll
            for (int i = 0; i < PIECE; i++)
                in.read(read[i][0], rows[0], i < n ? block + i : block);
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
            fetch_next(piece);
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }

        const Work work = find(turn);
        const int number = work.number, which = work.which, n_rows = work.n_rows;
        int n_made = n_slots;
        float *to = which == 0 ? y + y_begin : which == 1 ? y_2 : y_3;
#pragma unroll
        for (int i = 0; i < 4; i++)
            of_warp[(2 * q + (i & 1)) * 16 + g + (i >> 1) * 8] = sum[0][0][i];
        __syncthreads();
        {
            const int i = threadIdx.x, row = number * 16 + (i & 15);
            const int slot = i < 16 * WIDTH && row < n_rows ? slots.slot(i >> 4) : -1;
            if (slot >= 0) {
                const float *of_bias = which == 0 ? bias : which == 1 ? bias_2 : bias_3;
                float value = of_first[i];
#pragma unroll
                for (int other = 1; other < WARPS; other++)
                    value += of_first[other * OWN + i];
                if (of_bias)
                    value += of_bias[(size_t)matrix * n_rows + row];
                const size_t at = (size_t)slot * (which ? n_rows : y_pitch) + row;
                to[at] = residual ? value + residual[at] : value;
            }
        }
        __syncthreads();

        if (!counters)
            continue;
        if (follows == HEADS) {
            const int head_kind = kinds >> 2 * which & 3;
            const int width = head_kind == VALUES ? v_width : k_width, n_of_head = width / 16;
            const int head = number / n_of_head, row = threadIdx.x >> 5;
            if (head_kind == OTHERS ||
                !ends_last(counters + turn - number % n_of_head, n_of_head) || row >= n_slots)
                continue;
            const size_t at = (size_t)row * n_rows + head * width;
            char *rows =
                memory + slot_of_place(tables + (size_t)seqs[row] * n_entries, places[row]) * pitch;
            const float *own = cos_sin + (size_t)row * 2 * n_pairs;
            store_head({to + at, own, own + n_pairs, rotated_q + at,
                        head_kind == VALUES ? rows + v_begin : rows, type, n_rows / width, width,
                        head, n_pairs, are_neighbours != 0},
                       head_kind);
            continue;
        }
        if (shares) {
            /* Tiles that slots need count by columns, after the norm's counter; a thread mixes a value. */
            int n_used = 0;
            for (int i = 0; i < (int)gridDim.y; i++)
                n_used += matrices[i] >= 0;
            if (!ends_last(counters + 1 + number, n_used))
                continue;
            n_made /= n_mixed;
            const int row = threadIdx.x >> 4, column = number * 16 + (threadIdx.x & 15);
            const size_t at = (size_t)row * n_rows + column;
            if (row < n_made && column < n_rows)
                mixed_y[at] = mixed(to + (size_t)row * n_mixed * n_rows + column, n_mixed, n_rows,
                                    shares + row * n_mixed, first_residual, second_residual, at);
            to = mixed_y;
        }
        if (follows == NOTHING)
            continue;
        if (follows == NORM || follows == CENTRED_NORM) {
            if (which != kinds || !ends_last(counters, n_tiles_of(n_rows)))
                continue;
            const Norm norm = {weight_of_norm, bias_of_norm, codes,         scales_of_codes,
                               sums_of_codes,  n_rows,       (float)n_rows, eps};
            float *partial = of_first + 256; /* after what the first warp has */
#pragma unroll 1
            for (int row = 0; row < n_made; row++) {
                const size_t at = (size_t)row * n_rows;
                normalise_row<1>(norm, follows == CENTRED_NORM, of_codes, to + at,
                                 normed ? normed + at : normed, row, partial + row * 2 * ALL_WARPS,
                                 of_warp, [] {});
            }
            continue;
        }
        const int n_of_block = of_codes / 16;
        int own, of_row, row = slots.slot(warp); /* of blocks; the row is -1 where it is missing */
        size_t first;                            /* where the block is in the products */
        const float *gates = to, *others = nullptr;
        if (follows == PASSED) {
            if (which != kinds)
                continue;
            const int width = n_rows * (int)gridDim.z, column = matrix * n_rows + number * 16;
            const int part = column / part_apart, of_part = column % part_apart - part_begin;
            if (of_part < 0 || of_part >= part_width)
                continue;
            own = (part * part_width + of_part) / of_codes;
            of_row = width / part_apart * part_width / of_codes;
            if (!ends_last(counters + own, n_of_block))
                continue;
            row = row < 0 ? row : row / (int)gridDim.z;
            first = (size_t)row * width + column - of_part % of_codes;
        } else {
            own = number / n_of_block, of_row = n_tiles_of(n_rows) / n_of_block;
            if (!ends_last(counters + (size_t)tile * of_row + own, 2 * n_of_block))
                continue;
            first = ((size_t)row * of_row + own) * of_codes;
            gates = y, others = y_2;
        }
        if (row < 0) /* a whole warp */
            continue;
        const Coded made = {gates,         others, codes, scales_of_codes,
                            sums_of_codes, kind,   limit, offset};
        const size_t at = (size_t)row * of_row + own;
        if (of_codes == 256)
            store_codes<8>(made, of_warp, first, at);
        else
            store_codes<1>(made, of_warp, first, at);
    }
}
