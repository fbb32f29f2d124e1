/* y = what a head attends to: the sums of its ranges (attention.cu), taken together in order, and
 * divided by the sum of weights. A sink is one more score, of a value of zeros.
 */
#define AT_ONCE 4 /* ranges that are asked for together */

/* The sums of a head's ranges, which lie one after the other. */
struct Head {
    const float *sums, *sink;
    int n_ranges, v_width;
};

/* Entries d, ..., d + N - 1 of a head. */
template <int N>
static __device__ __forceinline__ void merged(float (&out)[N], const Head &head, int d)
{
    const int v_width = head.v_width;
    float top = __uint_as_float(0xff800000u), total = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++)
        out[i] = 0.0f;
    for (int first = 0; first < head.n_ranges; first += AT_ONCE) {
        float tops[AT_ONCE], totals[AT_ONCE], values[AT_ONCE][N];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) { /* the last one repeats */
            const int range = first + j < head.n_ranges ? first + j : head.n_ranges - 1;
            const float *own = head.sums + (size_t)range * (v_width + 2);
            tops[j] = own[v_width], totals[j] = own[v_width + 1];
#pragma unroll
            for (int i = 0; i < N; i++)
                values[j][i] = own[d + i];
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            if (first + j >= head.n_ranges)
                break;
            if (first + j == 0) {
                top = tops[0], total = totals[0];
#pragma unroll
                for (int i = 0; i < N; i++)
                    out[i] = values[0][i];
                continue;
            }
            const float highest = tops[j] > top ? tops[j] : top;
            const float before = exponential(top - highest), now = exponential(tops[j] - highest);
            total = total * before + totals[j] * now;
#pragma unroll
            for (int i = 0; i < N; i++)
                out[i] = fmaf(values[j][i], now, out[i] * before);
            top = highest;
        }
    }
    if (head.sink) {
        const float sink = *head.sink, highest = sink > top ? sink : top;
        const float factor = exponential(top - highest);
        total = total * factor + exponential(sink - highest);
#pragma unroll
        for (int i = 0; i < N; i++)
            out[i] *= factor;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        out[i] = __fdiv_rn(out[i], total);
}

/* Where rows of all heads go: to y, or where `block` is not 0 to codes of as many values each. */
struct Attended {
    float *y;
    signed char *codes;
    float *scales;
    short *sums;
    int block;
};

/* Stores values `at` .. of heads, N in each lane of a warp, after `before` others of all rows. There
 * are `n_values` of them, and `head_of` has the sums of each head. */
template <int N, class HeadOf>
static __device__ __forceinline__ void store_merged(const Attended &to, const HeadOf &head_of,
                                                    size_t before, int at, int n_values)
{
    const int v_width = head_of(0).v_width;
    float value[N] = {};
    if (N == 1 || v_width % N == 0) { /* all of one head */
        if (at < n_values)
            merged(value, head_of(at / v_width), at % v_width);
    } else {
#pragma unroll 1
        for (int i = 0; i < N; i++) {
            float own[1];
            merged(own, head_of((at + i) / v_width), (at + i) % v_width);
#pragma unroll /* registers have no index that is made at run time */
            for (int j = 0; j < N; j++)
                value[j] = i == j ? own[0] : value[j];
        }
    }
    if (to.block)
        store_block(value, (before + at) / (32 * N), to.codes, to.scales, to.sums);
    else if (at < n_values)
        to.y[before + at] = value[0];
}
