/* A row less its mean where it is centred (or as it is), divided by the root of the mean of squares,
 * times weights, plus a bias; made by a CTA of 256. A null weight stands for ones, a null bias for
 * nothing to add.
 *
 * Of a sum every thread adds its own columns, eight of every 2048, in ascending order, then a fixed tree
 * adds the threads: lanes 16, 8, 4, 2, 1 apart, then the warps in order.
 */
#define ALL_WARPS 8
#define EACH 8 /* columns of a thread in a stretch of a row */
#define OF_STRETCH (32 * ALL_WARPS * EACH)

/* How rows are normalised, and where codes of theirs go. */
struct Norm {
    const float *weight, *bias;
    signed char *codes;
    float *scales;
    short *sums;
    int width;
    float n, eps;
};

static __device__ __forceinline__ float total_of(float sum, float *partial)
{
    for (int step = 16; step > 0; step >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if ((threadIdx.x & 31) == 0)
        partial[threadIdx.x >> 5] = sum;
    __syncthreads();
    float total = 0.0f;
    for (int i = 0; i < ALL_WARPS; i++)
        total += partial[i];
    return total;
}

/* Asks for what this thread has of stretches `first`, first + 1, ...; `missing` past the row's end. */
template <int HELD>
static __device__ __forceinline__ void load(float (&into)[HELD][EACH], const float *row, int first,
                                            int width, float missing)
{
#pragma unroll
    for (int j = 0; j < HELD; j++) {
        const int at = (first + j) * OF_STRETCH + threadIdx.x * EACH;
        if (width % 4 == 0 && at + EACH <= width) {
            load_eight(into[j], row + at);
        } else {
#pragma unroll
            for (int i = 0; i < EACH; i++)
                into[j][i] = at + i < width ? row[at + i] : missing;
        }
    }
}

/* Normalises row number `row`, which lies at x; so many stretches are held. It goes to y where that is not
 * null, and to codes in blocks of `block` where that is not 0. Weights are asked for before wait(). The CTA
 * has 16 floats of shared memory that nobody is still to read, and each warp 256, where blocks are of 32. */
template <int HELD, class Wait>
static __device__ __forceinline__ void
normalise_row(const Norm &norm, bool is_centred, int block, const float *x, float *y, size_t row,
              float *partial, float *of_warp, const Wait &wait)
{
    const int width = norm.width, n_stretches = (width + OF_STRETCH - 1) / OF_STRETCH;
    float weights[HELD][EACH], values[HELD][EACH];
    const auto load_weights = [&](int first) {
        if (norm.weight)
            load(weights, norm.weight, first, width, 1.0f);
    };
    load_weights(0);
    wait();
    load(values, x, 0, width, 0.0f);

    /* Calls take(stretch, its number among those held) for all, with their values at hand. */
    const auto for_stretches = [&](const auto &take) {
#pragma unroll 1
        for (int first = 0; first < n_stretches; first += HELD) {
            if (n_stretches > HELD)
                load(values, x, first, width, 0.0f);
#pragma unroll
            for (int j = 0; j < HELD; j++)
                take(first + j, j);
        }
    };
    float mean = 0.0f;
    if (is_centred) {
        for_stretches([&](int, int j) {
#pragma unroll
            for (int i = 0; i < EACH; i++)
                mean += values[j][i];
        });
        mean = __fdiv_rn(total_of(mean, partial + ALL_WARPS), (float)width);
    }
    float squares = 0.0f;
    for_stretches([&](int stretch, int j) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const bool is_past_end = stretch * OF_STRETCH + (int)threadIdx.x * EACH + i >= width;
            const float centred = is_centred && is_past_end ? 0.0f : values[j][i] - mean;
            squares = fmaf(centred, centred, squares);
        }
    });
    squares = total_of(squares, partial);

    const float factor = __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(squares, norm.n) + norm.eps));
    for_stretches([&](int stretch, int j) {
        const int at = stretch * OF_STRETCH + threadIdx.x * EACH;
        if (j == 0 && n_stretches > HELD)
            load_weights(stretch);
        float made[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            made[i] = (values[j][i] - mean) * factor;
            if (norm.weight)
                made[i] *= weights[j][i];
            if (is_centred && norm.bias && at + i < width)
                made[i] += norm.bias[at + i];
            if (y && at + i < width)
                y[at + i] = made[i];
        }
        if (block == 256) {
            const int own = at / 256, n_blocks = width / 256;
            if (own < n_blocks) /* a whole warp */
                store_block(made, row * n_blocks + own, norm.codes, norm.scales, norm.sums);
        } else if (block == 32) {
            const int lane = threadIdx.x & 31, n_blocks = width / 32;
#pragma unroll
            for (int i = 0; i < EACH; i++)
                of_warp[lane * EACH + i] = made[i];
            __syncwarp();
            for (int i = 0; i < EACH; i++) {
                const int own = at / 256 * EACH + i;
                if (own >= n_blocks) /* a whole warp */
                    break;
                const float value[1] = {of_warp[i * 32 + lane]};
                store_block(value, row * n_blocks + own, norm.codes, norm.scales, norm.sums);
            }
            __syncwarp(); /* all lanes have read */
        }
    });
}
