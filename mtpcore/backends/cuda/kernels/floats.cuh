/* Products in floating point, weights of TYPE F32, F16 or BF16: y[t][r] = sum_k w[r][k] x[t][k] +
 * bias[r], of which a CTA makes 4 rows for 8 slots (slots.cuh).
 *
 * Thread i takes four columns from 4i on of every 1024 in ascending order, in one chain of fused
 * multiply-adds; then a fixed tree adds the threads: lanes 16, 8, 4, 2 and 1 apart, then the warps in
 * order. So a token's bits are the same alone, in a batch, and beside any neighbours. Rows of weights
 * are filled up with zeros to whole groups of four columns. Weights are fetched before the launch before
 * has ended (early.cuh). Grid: (rows / 4, tiles of slots from `from_tile` on, heads). Block: 256.
 */
#define THREADS 256
#define WARPS (THREADS / 32)
#define ROWS 4
#define TOKENS 8
#define AT_ONCE 4 /* tokens whose columns are asked for together */

#define F32 0
#define F16 1
#define BF16 2

#if TYPE == F32
typedef uint4 Four;
#else
typedef uint2 Four;
#endif

static __device__ __forceinline__ void unpack(float (&out)[4], Four in)
{
#if TYPE == F32
    const unsigned words[4] = {in.x, in.y, in.z, in.w};
    for (int i = 0; i < 4; i++)
        out[i] = __uint_as_float(words[i]);
#else
    const unsigned words[2] = {in.x, in.y};
    for (int i = 0; i < 4; i++) {
        const unsigned half = words[i >> 1] >> (i & 1) * 16 & 0xffffu;
        out[i] = TYPE == BF16 ? __uint_as_float(half << 16) : widen((unsigned short)half);
    }
#endif
}

/* Columns column .. column + 3 of a row, zeros past its end. */
template <bool IS_ALIGNED>
static __device__ __forceinline__ void read(float (&out)[4], const float *row, int column,
                                            int n_cols)
{
    if constexpr (IS_ALIGNED) { /* rows begin on 16 bytes */
        const float4 four = *(const float4 *)(row + column);
        out[0] = four.x, out[1] = four.y, out[2] = four.z, out[3] = four.w;
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            out[i] = column + i < n_cols ? row[column + i] : 0.0f;
    }
}

/* Adds up this thread's columns of rows of weights and of x, which begin at these places. The next
 * weights are on their way meanwhile, and values of x are asked for AT_ONCE. */
template <bool IS_ALIGNED>
static __device__ __forceinline__ void
add_up(float (&sum)[ROWS * TOKENS], const Four *weights, const unsigned (&row_at)[ROWS],
       const float *x, const unsigned (&token_at)[TOKENS], int n_tokens, int n_cols)
{
    const int pitch = (n_cols + 3) / 4;
    Four next[ROWS];
    int four = threadIdx.x;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        next[r] = four < pitch ? weights[row_at[r] + four] : Four{};
#pragma unroll 1
    for (; four < pitch; four += THREADS) {
        float w[ROWS][4];
#pragma unroll
        for (int first = 0; first < TOKENS; first += AT_ONCE) {
            float v[AT_ONCE][4];
#pragma unroll
            for (int t = 0; t < AT_ONCE; t++)
                if (first + t < n_tokens)
                    read<IS_ALIGNED>(v[t], x + token_at[first + t], 4 * four, n_cols);
#pragma unroll
            for (int r = 0; r < ROWS && first == 0; r++) {
                unpack(w[r], next[r]);
                if (four + THREADS < pitch)
                    next[r] = weights[row_at[r] + four + THREADS];
            }
#pragma unroll
            for (int t = 0; t < AT_ONCE; t++) {
                if (first + t >= n_tokens)
                    break;
#pragma unroll
                for (int r = 0; r < ROWS; r++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        float &own = sum[r * TOKENS + first + t];
                        own = fmaf(w[r][i], v[t][i], own);
                    }
            }
        }
    }
}

/* Adds up sums of all lanes: each step leaves a lane half of them, those whose number has the lane's
 * own bit; in the end lane i has sum i of the whole warp in place 0. */
template <int STEP> static __device__ __forceinline__ void add_lanes(float (&sum)[ROWS * TOKENS])
{
    const bool is_upper = threadIdx.x & STEP;
    float others[STEP];
#pragma unroll
    for (int i = 0; i < STEP; i++)
        others[i] = is_upper ? sum[i] : sum[i + STEP];
    exchange(others, STEP);
#pragma unroll
    for (int i = 0; i < STEP; i++)
        sum[i] = (is_upper ? sum[i + STEP] : sum[i]) + others[i];
    if constexpr (STEP > 1)
        add_lanes<STEP / 2>(sum);
}

static __device__ __forceinline__ void
multiply_floats(const Four *__restrict__ weights, const float *x, const float *__restrict__ bias,
                const int *matrices, const int *members, float *y, int n_rows, int n_cols,
                int n_slots, int n_ranks, int from_tile)
{
    __shared__ float partial[WARPS][ROWS * TOKENS];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int first_row = blockIdx.x * ROWS, pitch = (n_cols + 3) / 4;
    const int tile = from_tile + blockIdx.y;
    int matrix = blockIdx.z;
    if (!matrices) { /* which one it is, launches before have written */
        const size_t n_own = n_rows - first_row < ROWS ? n_rows - first_row : ROWS;
        prefetch_all(weights + ((size_t)matrix * n_rows + first_row) * pitch,
                     n_own * pitch * sizeof(Four));
    }
    wait_for_launches();
    let_next_begin();
    if (matrices) {
        matrix = matrices[tile];
        if (matrix < 0)
            return;
    }

    const Slots slots = slots_of(members, tile, TOKENS, n_slots, n_ranks);
    const Four *own = weights + ((size_t)matrix * n_rows + first_row) * pitch;
    unsigned row_at[ROWS], token_at[TOKENS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) /* a row that is missing repeats the last one */
        row_at[r] = (first_row + r < n_rows ? r : n_rows - 1 - first_row) * pitch;
    int n_tokens = 0;
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
        token_at[t] = slots.row(t) * n_cols;
        if (slots.slot(t) >= 0)
            n_tokens = t + 1;
    }
    float sum[ROWS * TOKENS] = {};
    if (n_cols % 4 == 0)
        add_up<true>(sum, own, row_at, x, token_at, n_tokens, n_cols);
    else
        add_up<false>(sum, own, row_at, x, token_at, n_tokens, n_cols);
    add_lanes<ROWS * TOKENS / 2>(sum);
    partial[warp][lane] = sum[0];
    __syncthreads();
    if (warp > 0)
        return;
    const int row = first_row + lane / TOKENS;
    const int slot = slots.slot(lane % TOKENS);
    if (row < n_rows && slot >= 0) {
        float total = partial[0][lane];
        for (int i = 1; i < WARPS; i++)
            total += partial[i][lane];
        y[(size_t)slot * n_rows + row] = bias ? total + bias[(size_t)matrix * n_rows + row] : total;
    }
}
