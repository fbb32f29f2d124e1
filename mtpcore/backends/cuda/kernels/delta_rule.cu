/* The gated delta rule of each row: the state S [k_width][v_width] of a head times its decay, then
 * d = beta (v - S^T k), or beta v where it does not correct, S = S + k d^T, and y = S^T q.
 *
 * Columns of S do not meet. Four threads have a column, each the entries of its number mod 4, at most
 * ENTRIES: these are the four chains of a sum, (0 + 2) + (1 + 3) in the end. A CTA goes through the
 * advances of one sequence for 32 columns of a head. It reads the base once, and again for each
 * branch of a draft tree, and has the state in registers until the end. What rows bring waits in
 * shared memory, and that of the next few rows is fetched meanwhile. DECAYS says what has a decay of
 * its own: 0 a head, 1 an entry of its key, 2 a column, which multiplies the rates of its entries. A
 * row of a log has k of every key head, then v, decays and beta of every head. Grid: (sequences,
 * heads x columns / 32). Block: 128.
 */
#include "advance.cuh"
#include "functions.cuh"

#define BY_CHANNEL (DECAYS == 1)
#define BY_COLUMN (DECAYS == 2)
#define CHAINS 4
#define COLUMNS 32
#define THREADS (CHAINS * COLUMNS)
#define WIDTH (CHAINS * ENTRIES)
#define ROWS 4                         /* that are fetched together */
#define SHARE (ROWS * WIDTH / THREADS) /* of their entries that a thread fetches */
#define FOURS (ENTRIES / 4)
#define PITCH (FOURS + 1) /* the four chains lie in different banks of shared memory */

/* A vector of k_width entries, chain after chain. */
typedef float4 Chains[CHAINS * PITCH];

/* The layer's rows and logs, and what of it the CTA and its thread have. */
struct Part {
    const float *q, *k, *v, *decays, *betas, *rates;
    float *bases, *logs;
    int n_heads, n_key_heads, k_width, v_width, n_decays;
    int head, key_head, chain, column, n_entries;
    bool has_column, keeps_head, keeps_key;
};

/* What a row brings to a head; q where it is of the batch. */
struct Row {
    const float *q, *k, *v, *decays, *beta;
};

/* Where that is in a row of the log, and how long the row is. */
struct Places {
    int k, v, decays, beta, end;
};

static __device__ __forceinline__ Places places_in_log(const Part &part)
{
    const int values = part.n_key_heads * part.k_width;
    const int decays = values + part.n_heads * part.v_width;
    const int betas = decays + part.n_heads * part.n_decays;
    return {part.key_head * part.k_width, values + part.head * part.v_width,
            decays + part.head * part.n_decays, betas + part.head, betas + part.n_heads};
}

static __device__ __forceinline__ Row row_of(const Part &part, const Advance &advance)
{
    if (advance.row < 0) {
        const Places at = places_in_log(part);
        const float *row = part.logs + (size_t)~advance.row * at.end;
        return {nullptr, row + at.k, row + at.v, row + at.decays, row + at.beta};
    }
    const size_t head = (size_t)advance.row * part.n_heads + part.head;
    const size_t key_head = (size_t)advance.row * part.n_key_heads + part.key_head;
    return {part.q + key_head * part.k_width, part.k + key_head * part.k_width,
            part.v + head * part.v_width, part.decays + head * part.n_decays, part.betas + head};
}

/* The first entry of the thread's chain in the state of a slot; the next one is CHAINS rows on. */
static __device__ __forceinline__ float *column_in_base(const Part &part, int slot)
{
    const size_t head = (size_t)slot * part.n_heads + part.head;
    return part.bases + (head * part.k_width + part.chain) * part.v_width + part.column;
}

static __device__ __forceinline__ void read_base(float (&state)[ENTRIES], const Part &part,
                                                 int slot)
{
    const int n = slot >= 0 && part.has_column ? part.n_entries : 0;
    const float *at = column_in_base(part, slot);
#pragma unroll
    for (int i = 0; i < ENTRIES; i++, at += CHAINS * part.v_width)
        state[i] = i < n ? *at : 0.0f;
}

static __device__ __forceinline__ void write_base(const float (&state)[ENTRIES], const Part &part,
                                                  int slot)
{
    const int n = part.has_column ? part.n_entries : 0;
    float *at = column_in_base(part, slot);
#pragma unroll
    for (int i = 0; i < ENTRIES; i++, at += CHAINS * part.v_width)
        if (i < n)
            *at = state[i];
}

/* The rates of the thread's entries, one after CHAINS others: too many for registers. */
static __device__ __forceinline__ const float *rates_of(const Part &part)
{
    const size_t column = (size_t)part.head * part.v_width + part.column;
    return part.rates + column * part.k_width + part.chain;
}

/* Keep the CTA's columns of v, and their decays; for one CTA of a head its decays and beta, of a key
 * head k. */
static __device__ __forceinline__ void keep_row(const Part &part, const Advance &advance)
{
    const Row row = row_of(part, advance);
    const Places at = places_in_log(part);
    float *kept = part.logs + (size_t)advance.kept * at.end;
    if (part.chain == 0 && part.has_column)
        kept[at.v + part.column] = row.v[part.column];
    if (BY_COLUMN && part.chain == 0 && part.has_column)
        kept[at.decays + part.column] = row.decays[part.column];
    if (part.keeps_head) {
        for (int i = threadIdx.x; !BY_COLUMN && i < part.n_decays; i += THREADS)
            kept[at.decays + i] = row.decays[i];
        if (threadIdx.x == 0)
            kept[at.beta] = *row.beta;
    }
    if (part.keeps_key)
        for (int i = threadIdx.x; i < part.k_width; i += THREADS)
            kept[at.k + i] = row.k[i];
}

/* A thread's share of what ROWS rows bring: some entries of vectors, v and perhaps the decay of its
 * column for the row of its chain's number, and beta and else the decay for that of its own number. */
struct Fetched {
    float q[SHARE], k[SHARE], decays[SHARE], v, decay, beta;
};

static __device__ __forceinline__ void fetch(Fetched &to, const Part &part, const Advance *advances,
                                             int n)
{
#pragma unroll
    for (int i = 0; i < SHARE; i++) {
        const int number = (threadIdx.x + i * THREADS) / WIDTH;
        const int entry = (threadIdx.x + i * THREADS) % WIDTH;
        to.q[i] = to.k[i] = to.decays[i] = 0.0f;
        if (number >= n || entry >= part.k_width)
            continue;
        const Row row = row_of(part, advances[number]);
        to.k[i] = row.k[entry];
        if (row.q)
            to.q[i] = row.q[entry];
        if (BY_CHANNEL)
            to.decays[i] = row.decays[entry];
    }
    const bool is_there = part.chain < n && part.has_column;
    to.v = to.decay = to.beta = 0.0f;
    if (is_there) {
        const Row row = row_of(part, advances[part.chain]);
        to.v = row.v[part.column];
        if (BY_COLUMN)
            to.decay = row.decays[part.column];
    }
    if (threadIdx.x < ROWS && (int)threadIdx.x < n) {
        const Row row = row_of(part, advances[threadIdx.x]);
        if (DECAYS == 0)
            to.decay = *row.decays;
        to.beta = *row.beta;
    }
}

/* What rows bring, in shared memory; decays are factors there, but those of columns. */
struct Shelf {
    Chains q[ROWS], k[ROWS], factors[BY_CHANNEL ? ROWS : 1];
    float v[ROWS][COLUMNS], decays[BY_COLUMN ? ROWS : 1][COLUMNS], factor[ROWS], beta[ROWS];
};

static __device__ __forceinline__ void put(Shelf &shelf, const Fetched &from, const Part &part)
{
#pragma unroll
    for (int i = 0; i < SHARE; i++) {
        const int number = (threadIdx.x + i * THREADS) / WIDTH;
        const int entry = (threadIdx.x + i * THREADS) % WIDTH;
        const int place = entry % CHAINS * (4 * PITCH) + entry / CHAINS;
        ((float *)shelf.q[number])[place] = from.q[i];
        ((float *)shelf.k[number])[place] = from.k[i];
        if (BY_CHANNEL)
            ((float *)shelf.factors[number])[place] = exponential(from.decays[i]);
    }
    shelf.v[part.chain][threadIdx.x / CHAINS] = from.v;
    if (BY_COLUMN)
        shelf.decays[part.chain][threadIdx.x / CHAINS] = from.decay;
    if (threadIdx.x < ROWS) {
        shelf.factor[threadIdx.x] = exponential(from.decay);
        shelf.beta[threadIdx.x] = from.beta;
    }
}

/* The sum of a column, in its four threads. */
static __device__ __forceinline__ float sum_of_chains(float sum)
{
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 1);
}

static __device__ __forceinline__ void spread(float (&to)[4], float4 four)
{
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}

/* Decay the state, and return what k reads of it. */
static __device__ __forceinline__ float decay(float (&state)[ENTRIES], const Shelf &shelf, int row,
                                              const Part &part)
{
    const float of_column = shelf.decays[BY_COLUMN ? row : 0][threadIdx.x / CHAINS];
    const int n_rated = BY_COLUMN && part.has_column ? part.n_entries : 0;
    float sum = 0.0f;
#pragma unroll
    for (int four = 0; four < FOURS; four++) {
        float k[4], factors[4];
        spread(k, shelf.k[row][part.chain * PITCH + four]);
        if (BY_CHANNEL)
            spread(factors, shelf.factors[BY_CHANNEL ? row : 0][part.chain * PITCH + four]);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int i = 4 * four + j;
            if (i < n_rated)
                state[i] *= exponential(of_column * rates_of(part)[i * CHAINS]);
            else if (!BY_COLUMN)
                state[i] *= BY_CHANNEL ? factors[j] : shelf.factor[row];
            sum = i < part.n_entries ? fmaf(state[i], k[j], sum) : sum;
        }
    }
    return sum_of_chains(sum);
}

/* Add k times the change, and return what q reads of the state then. */
static __device__ __forceinline__ float update(float (&state)[ENTRIES], const Shelf &shelf, int row,
                                               float change, const Part &part)
{
    float sum = 0.0f;
#pragma unroll
    for (int four = 0; four < FOURS; four++) {
        float k[4], q[4];
        spread(k, shelf.k[row][part.chain * PITCH + four]);
        spread(q, shelf.q[row][part.chain * PITCH + four]);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int i = 4 * four + j;
            state[i] = fmaf(k[j], change, state[i]);
            sum = i < part.n_entries ? fmaf(state[i], q[j], sum) : sum;
        }
    }
    return sum_of_chains(sum);
}

/* For more CTAs on a multiprocessor the assembler would spill. */
extern "C" __global__ void __launch_bounds__(THREADS, ENTRIES > 32 ? 2 : 4)
    delta_rule(float *bases, float *logs, const int *walks, int n_seq, int n_rows, int n_heads,
               int n_key_heads, int k_width, int v_width, int is_tiled, int corrects,
               const float *q = nullptr, const float *k = nullptr, const float *v = nullptr,
               const float *decays = nullptr, const float *betas = nullptr,
               const float *rates_of_columns = nullptr, float *y = nullptr)
{
    __shared__ Shelf shelf;
    const int n_advances = walks[2 * blockIdx.x + 1];
    if (n_advances == 0)
        return;
    const Advance *advances = advances_of(walks, n_seq, n_rows) + walks[2 * blockIdx.x];
    const int n_tiles = (v_width + COLUMNS - 1) / COLUMNS, n_shared = n_heads / n_key_heads;
    const int head = blockIdx.y / n_tiles, tile = blockIdx.y % n_tiles;
    const int chain = threadIdx.x % CHAINS, column = tile * COLUMNS + threadIdx.x / CHAINS;
    const bool is_first = is_tiled ? head < n_key_heads : head % n_shared == 0;
    const Part part = {q,
                       k,
                       v,
                       decays,
                       betas,
                       rates_of_columns,
                       bases,
                       logs,
                       n_heads,
                       n_key_heads,
                       k_width,
                       v_width,
                       BY_COLUMN    ? v_width
                       : BY_CHANNEL ? k_width
                                    : 1,
                       head,
                       is_tiled ? head % n_key_heads : head / n_shared,
                       chain,
                       column,
                       (k_width - chain + CHAINS - 1) / CHAINS,
                       column < v_width,
                       tile == 0,
                       tile == 0 && is_first};

    float state[ENTRIES];
    Fetched fetched;
    read_base(state, part, advances[0].slot);
    fetch(fetched, part, advances, n_advances);
    for (int first = 0; first < n_advances; first += ROWS) {
        __syncthreads();
        put(shelf, fetched, part);
        __syncthreads();
        const int left = n_advances - first - ROWS;
        fetch(fetched, part, advances + first + ROWS, left);
        for (int i = 0; i < ROWS && i < n_advances - first; i++) {
            const Advance own = advances[first + i];
            if (own.depth == 0 && first + i > 0)
                read_base(state, part, own.slot);
            if (own.before >= 0)
                write_base(state, part, own.before);
            if (own.kept >= 0)
                keep_row(part, own);
            const float seen = decay(state, shelf, i, part), v = shelf.v[i][threadIdx.x / CHAINS];
            const float change = shelf.beta[i] * (corrects ? v - seen : v);
            const float made = update(state, shelf, i, change, part);
            if (own.wanted && chain == 0 && part.has_column)
                y[((size_t)own.row * n_heads + head) * v_width + column] = made;
            if (own.after >= 0)
                write_base(state, part, own.after);
        }
    }
}
