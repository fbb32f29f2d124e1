/* Blocks of quantised weights times blocks of codes, added to what a warp's lanes hold of the results of
 * 16 ROW_TILES rows of weights and 8 TOKEN_TILES slots (slots.cuh).
 *
 * Products of a block are exact in int32 (products of the tensor cores, 16 x 32 by 32 x 8, for 32 columns),
 * and so are factors, minima and what the codes' offset adds; one chain of fused multiply-adds takes them
 * in, times the two scales, and after it the block's minima. Codes of x are read before their block is
 * multiplied where they are PRELOADED. Weights lie as quantised.cuh says, x as quantise.cuh does.
 */
#define WARPS 8
#define WIDTH (8 * TOKEN_TILES)

/* Bytes of a block of a row tile, in each plane of weights. */
#define LOW_BYTES (STEPS * 32 * (int)sizeof(Low))
#define HIGH_BYTES (HIGH ? STEPS * 32 * (int)sizeof(High) : 0)
#define PART_BYTES (SETS * 16 * PARTS)
#define SCALE_BYTES ((MINIMA ? 32 : 16) * (int)sizeof(Scale))
#define BLOCK_BYTES (LOW_BYTES + HIGH_BYTES + PART_BYTES + SCALE_BYTES)

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
static __device__ __forceinline__ int n_tiles_of(int n_rows) { return (n_rows + 15) / 16; }

/* Blocks before those of a row tile. */
static __device__ __forceinline__ size_t blocks_before(int matrix, int n_rows, int tile,
                                                       int n_blocks)
{
    return (size_t)((unsigned)matrix * n_tiles_of(n_rows) + tile) * (unsigned)n_blocks;
}
