/* y[t][r] = sum_k w[r][k] x[t][k] + bias[r], quantised weights times int8 activations.
 *
 * The blocks of a row are summed in eighths, each in ascending order (blocks.cuh). Then the eighths are
 * added in order. The split depends on the matrix alone, and a column of a product on its own token alone:
 * a token's bits are the same alone (matmul_few.cu), in a batch, in tiles of any number, and beside any
 * neighbours. Slots that are missing repeat the first row of x, and nobody reads what comes of it.
 *
 * A warp makes 16 ROW_TILES outputs for 8 TOKEN_TILES slots (slots.cuh). Where EIGHTHS is 1, the 8
 * warps of a CTA share a tile, and each has an eighth of its blocks; else each has a tile, and goes
 * through all 8. Weights are asked for before the launch before has ended (early.cuh).
 *
 * Up to three matrices of a type may share the rows of x: the CTAs of one come after those of the
 * other. Rows of the first one's results are y_pitch apart. Where there are rows of a `residual`, they are
 * added last.
 * Grid: (row tiles / ROW_TILES of each, or as many CTAs as have warps for these, tiles of slots from
 * `from_tile` on, heads). Block: 256.
 */
#define PRELOADED 0
#include "early.cuh"
#include "float16.cuh"
#include "products.cuh"
#include "quantised.cuh"
#include "slots.cuh"
#include "blocks.cuh"

#define TILES_OF_CTA (ROW_TILES * (EIGHTHS == 1 ? 1 : WARPS))

static __device__ __forceinline__ int n_ctas(int n_rows)
{
    return (n_rows + 16 * TILES_OF_CTA - 1) / (16 * TILES_OF_CTA);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    matmul(const char *__restrict__ low, const char *__restrict__ high,
           const char *__restrict__ parts, const char *__restrict__ scales, const Codes *x,
           const float *x_scales, const unsigned *x_sums, const float *__restrict__ bias,
           const int *matrices, const int *members, float *__restrict__ y, int n_rows, int n_blocks,
           int n_slots, int n_ranks, int from_tile, int y_begin, int y_pitch,
           const float *residual = nullptr, const char *__restrict__ low_2 = nullptr,
           const char *__restrict__ high_2 = nullptr, const char *__restrict__ parts_2 = nullptr,
           const char *__restrict__ scales_2 = nullptr, const float *__restrict__ bias_2 = nullptr,
           float *__restrict__ y_2 = nullptr, int n_rows_2 = 0,
           const char *__restrict__ low_3 = nullptr, const char *__restrict__ high_3 = nullptr,
           const char *__restrict__ parts_3 = nullptr, const char *__restrict__ scales_3 = nullptr,
           const float *__restrict__ bias_3 = nullptr, float *__restrict__ y_3 = nullptr,
           int n_rows_3 = 0)
{
#if EIGHTHS == 1
    __shared__ uint4 partials[WARPS][16 * WIDTH / 4];
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
    const int n_tiles = n_tiles_of(n_rows);
    const int first_tile = (EIGHTHS == 1 ? number : number * WARPS + warp) * ROW_TILES;
    const int tile = from_tile + blockIdx.y;
    int matrix = blockIdx.z;
    const Weights all = {low, high, parts, scales};
    const Inputs in = {x, x_scales, x_sums};

    if (!matrices) {
        const int left = n_tiles - number * TILES_OF_CTA;
        prefetch_blocks(all, blocks_before(matrix, n_rows, number * TILES_OF_CTA, n_blocks),
                        (size_t)(left < TILES_OF_CTA ? left : TILES_OF_CTA) * n_blocks);
    }
    wait_for_launches();
    let_next_begin();
    if (matrices) {
        matrix = matrices[tile];
        if (matrix < 0)
            return;
    }
    if (first_tile >= n_tiles) /* a whole warp */
        return;
    size_t first[ROW_TILES]; /* a tile that is missing repeats the last one */
#pragma unroll
    for (int r = 0; r < ROW_TILES; r++) {
        const int at = first_tile + r < n_tiles ? first_tile + r : n_tiles - 1;
        first[r] = blocks_before(matrix, n_rows, at, n_blocks);
    }

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

    /* Not before, or they take registers meanwhile. */
    if (which)
        bias = which == 1 ? bias_2 : bias_3, y = which == 1 ? y_2 : y_3;
    else
        y += y_begin;
    const int pitch_of_y = which ? n_rows : y_pitch;
#if EIGHTHS == 1
    float *partial = (float *)partials[warp];
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
            float value = ((const float *)partials[0])[i];
#pragma unroll
            for (int other = 1; other < WARPS; other++)
                value += ((const float *)partials[other])[i];
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
}
