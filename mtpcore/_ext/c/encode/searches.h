/* Searches for the scale (and least value) of a group whose codes come closest to its values.
 *
 * Sixteen groups side by side, one a lane; x[i] has value i of each, w[i] its weight. Every sum adds
 * the values of a group in their order, each product and sum rounded by itself, as ggml's scalar
 * code does (ggml-quants.c), so that the bytes are the same. Where a lane is done early, it goes on
 * with the others, and what it finds is dropped.
 */
#ifndef MTPCORE_ENCODE_SEARCHES_H
#define MTPCORE_ENCODE_SEARCHES_H

#include "core/lanes.h"
#include "encode/nearest.h"

/* Code that several types use is there once: inlined, it would be some hundred kilobytes. */
#define SHARED static __attribute__((noinline))

/* Groups whose largest value is below this are taken for zeros. */
#define LEAST_GROUP 1e-15f

INLINE lanes lanes_clamp(lanes a, float least, float most)
{
    const lanes low = lanes_all(least), high = lanes_all(most);
    a = lanes_if_less(a, low, low, a);
    return lanes_if_less(high, a, high, a);
}
INLINE lanes lanes_size(lanes a)
{
    return lanes_if_less(a, lanes_all(0), lanes_sub(lanes_all(0), a), a);
}

/* a and b, where 1 stands for yes and 0 for no. */
INLINE lanes lanes_both(lanes a, lanes b) { return lanes_mul(a, b); }
INLINE lanes lanes_less(lanes a, lanes b)
{
    return lanes_if_less(a, b, lanes_all(1), lanes_all(0));
}
/* yes ? x : y */
INLINE lanes lanes_choose(lanes yes, lanes x, lanes y)
{
    return lanes_if_less(lanes_all(0), yes, x, y);
}

/* The value that is farthest from 0, with its sign; of several the first. */
SHARED lanes farthest(const int n, const lanes *x)
{
    lanes value = lanes_all(0), size = lanes_all(0);
    for (int i = 0; i < n; i++) {
        const lanes own = lanes_size(x[i]), farther = lanes_less(size, own);
        value = lanes_choose(farther, x[i], value);
        size = lanes_choose(farther, own, size);
    }
    return value;
}

INLINE lanes symmetric_code(lanes x, lanes factor, float m)
{
    return lanes_clamp(lanes_nearest(lanes_mul(factor, x)), -m, m - 1);
}

/* Codes -m to m - 1, each the nearest to a multiple of the value: the scale that leaves the least
 * squared error is sum(w x l) / sum(w l l), and of 19 factors around -m / farthest the one is kept
 * for which it leaves least. Codes are written with m added; groups of zeros have codes 0.
 * ggml's make_qx_quants; w is x * x where there are no weights. */
SHARED lanes search_symmetric(const int n, const float m, const lanes *x, const lanes *w,
                              lanes *codes)
{
    const lanes zero = lanes_all(0), most = farthest(n, x);
    lanes wx[32];
    for (int i = 0; i < n; i++)
        wx[i] = lanes_mul(w[i], x[i]);
    lanes factor = zero, scale = zero, best = zero;
    for (int k = 0; k < 19; k++) { /* 0, then -9 to 9 without it */
        const int t = k == 0 ? 0 : k < 10 ? k - 10 : k - 9;
        const lanes tried = lanes_div(lanes_all(t == 0 ? -m : -(m + 0.1f * (float)t)), most);
        lanes along = zero, square = zero;
        for (int i = 0; i < n; i++) {
            const lanes l = symmetric_code(x[i], tried, m);
            along = lanes_add(along, lanes_mul(wx[i], l));
            square = lanes_add(square, lanes_mul(lanes_mul(w[i], l), l));
        }
        const lanes fitted = lanes_div(along, square);
        if (k == 0) {
            const lanes none = lanes_less(lanes_size(square), lanes_all(0x1p-149f)); /* 0 */
            factor = tried;
            scale = lanes_choose(none, zero, fitted);
            best = lanes_mul(scale, along);
            continue;
        }
        const lanes better = lanes_both(
            lanes_less(zero, square), lanes_less(lanes_mul(best, square), lanes_mul(along, along)));
        factor = lanes_choose(better, tried, factor);
        scale = lanes_choose(better, fitted, scale);
        best = lanes_choose(better, lanes_mul(fitted, along), best);
    }
    const lanes none = lanes_less(lanes_size(most), lanes_all(LEAST_GROUP));
    for (int i = 0; i < n; i++) {
        const lanes code = lanes_add(symmetric_code(x[i], factor, m), lanes_all(m));
        codes[i] = lanes_choose(none, zero, code);
    }
    return lanes_choose(none, zero, scale);
}

/* The same with weights x * x, but one factor, and then up to five passes in which each code may go
 * where the sums of the others would have it. ggml's make_q3_quants. */
SHARED lanes search_symmetric_in_passes(const int n, const float m, const lanes *x, lanes *codes)
{
    const lanes zero = lanes_all(0), most = farthest(n, x);
    const lanes factor = lanes_div(lanes_all(-m), most);
    lanes along = zero, square = zero;
    for (int i = 0; i < n; i++) {
        const lanes w = lanes_mul(x[i], x[i]), l = symmetric_code(x[i], factor, m);
        along = lanes_add(along, lanes_mul(lanes_mul(w, x[i]), l));
        square = lanes_add(square, lanes_mul(lanes_mul(w, l), l));
        codes[i] = l;
    }
    for (int pass = 0; pass < 5; pass++)
        for (int i = 0; i < n; i++) {
            const lanes w = lanes_mul(x[i], x[i]), wx = lanes_mul(w, x[i]), l = codes[i];
            const lanes rest = lanes_sub(along, lanes_mul(wx, l));
            const lanes rest_square = lanes_sub(square, lanes_mul(lanes_mul(w, l), l));
            const lanes wanted = lanes_div(lanes_mul(x[i], rest_square), rest);
            const lanes new = lanes_clamp(lanes_nearest(wanted), -m, m - 1);
            const lanes new_along = lanes_add(rest, lanes_mul(wx, new));
            const lanes new_square = lanes_add(rest_square, lanes_mul(lanes_mul(w, new), new));
            const lanes gain = lanes_less(lanes_mul(lanes_mul(along, along), new_square),
                                          lanes_mul(lanes_mul(new_along, new_along), square));
            const lanes moved = lanes_less(zero, lanes_size(lanes_sub(new, l)));
            const lanes taken = lanes_both(lanes_both(lanes_less(zero, rest), moved),
                                           lanes_both(lanes_less(zero, new_square), gain));
            codes[i] = lanes_choose(taken, new, l);
            along = lanes_choose(taken, new_along, along);
            square = lanes_choose(taken, new_square, square);
        }
    const lanes none = lanes_less(lanes_size(most), lanes_all(LEAST_GROUP));
    for (int i = 0; i < n; i++)
        codes[i] = lanes_choose(none, zero, lanes_add(codes[i], lanes_all(m)));
    const lanes scale = lanes_choose(lanes_less(zero, square), lanes_div(along, square), zero);
    return lanes_choose(none, zero, scale);
}

/* How codes of a scale and a least value are searched: first m / (high - low), then `tries` factors
 * (first + step * t + m) / (high - low). */
typedef struct {
    float first, step;
    int tries, absolute; /* absolute errors count, not squared ones */
} line_search;

INLINE lanes line_code(lanes x, lanes low, lanes factor, float m)
{
    return lanes_clamp(lanes_nearest(lanes_mul(factor, lanes_sub(x, low))), 0, m);
}

SHARED lanes line_error(const int n, const lanes *x, const lanes *w, const lanes *codes,
                        lanes scale, lanes low, const int absolute)
{
    lanes error = lanes_all(0);
    for (int i = 0; i < n; i++) {
        const lanes off = lanes_sub(lanes_add(lanes_mul(scale, codes[i]), low), x[i]);
        error = lanes_add(error, lanes_mul(w[i], absolute ? lanes_size(off) : lanes_mul(off, off)));
    }
    return error;
}

/* Codes 0 to m of scale * code + low with low <= 0: for each factor codes are rounded, and scale and
 * low fitted to them by least squares; the pair with the least error is kept, and its low is where
 * the next factors begin. Returns the scale; *minus_low is -low. Groups without extent have codes 0.
 * ggml's make_qkx2_quants and make_qkx3_quants. */
SHARED lanes search_line(const int n, const float m, const line_search how, const lanes *x,
                         const lanes *w, lanes *codes, lanes *minus_low)
{
    const lanes zero = lanes_all(0);
    lanes low = x[0], high = x[0], sum_w = w[0], sum_x = lanes_mul(w[0], x[0]);
    for (int i = 1; i < n; i++) {
        low = lanes_if_less(x[i], low, x[i], low);
        high = lanes_if_less(high, x[i], x[i], high);
        sum_w = lanes_add(sum_w, w[i]);
        sum_x = lanes_add(sum_x, lanes_mul(w[i], x[i]));
    }
    low = lanes_if_less(zero, low, zero, low);
    const lanes least = low, extent = lanes_less(low, high);
    lanes factor = lanes_div(lanes_all(m), lanes_sub(high, low)), from = low;
    lanes scale = lanes_div(lanes_all(1), factor);
    for (int i = 0; i < n; i++)
        codes[i] = line_code(x[i], low, factor, m);
    lanes error = line_error(n, x, w, codes, scale, low, how.absolute);
    for (int t = 0; t <= how.tries; t++) {
        const float numerator = how.first + how.step * (float)t + m;
        const lanes tried = lanes_div(lanes_all(numerator), lanes_sub(high, low));
        lanes sum_l = zero, sum_l2 = zero, sum_xl = zero;
        for (int i = 0; i < n; i++) {
            const lanes l = line_code(x[i], low, tried, m), wl = lanes_mul(w[i], l);
            codes[i] = l;
            sum_l = lanes_add(sum_l, wl);
            sum_l2 = lanes_add(sum_l2, lanes_mul(wl, l));
            sum_xl = lanes_add(sum_xl, lanes_mul(wl, x[i]));
        }
        const lanes spread = lanes_sub(lanes_mul(sum_w, sum_l2), lanes_mul(sum_l, sum_l));
        lanes new_scale =
            lanes_div(lanes_sub(lanes_mul(sum_w, sum_xl), lanes_mul(sum_x, sum_l)), spread);
        lanes new_low =
            lanes_div(lanes_sub(lanes_mul(sum_l2, sum_x), lanes_mul(sum_l, sum_xl)), spread);
        const lanes above = lanes_less(zero, new_low);
        new_scale = lanes_choose(above, lanes_div(sum_xl, sum_l2), new_scale);
        new_low = lanes_choose(above, zero, new_low);
        const lanes new_error = line_error(n, x, w, codes, new_scale, new_low, how.absolute);
        const lanes better = lanes_both(lanes_less(zero, spread), lanes_less(new_error, error));
        error = lanes_choose(better, new_error, error);
        scale = lanes_choose(better, new_scale, scale);
        factor = lanes_choose(better, tried, factor);
        from = lanes_choose(better, low, from);
        low = lanes_choose(better, new_low, low);
    }
    for (int i = 0; i < n; i++)
        codes[i] = lanes_choose(extent, line_code(x[i], from, factor, m), zero);
    *minus_low = lanes_mul(lanes_all(-1), lanes_choose(extent, low, least)); /* -0 for 0 */
    return lanes_choose(extent, scale, zero);
}

/* Codes of n scales that are hardly ever below 0, of one block; ggml's make_qp_quants, which keeps
 * them in bytes, where those below 0 come out large, and computes on with these. */
SHARED float search_scales(int n, int m, const float *x, const float *w, uint8_t *codes)
{
    float most = 0;
    for (int i = 0; i < n; i++)
        most = most > x[i] ? most : x[i];
    for (int i = 0; i < n; i++)
        codes[i] = 0;
    if (most < LEAST_GROUP)
        return 0;
    float factor = (float)m / most, error = 0;
    for (int i = 0; i < n; i++) {
        const float off = x[i] - 1 / factor * (float)(uint8_t)nearest(factor * x[i]);
        error += w[i] * off * off;
    }
    for (int t = -4; t <= 4; t++) {
        const float tried = (0.1f * (float)t + (float)m) / most;
        float new_error = 0;
        for (int i = 0; i < n; i++) {
            const int l = nearest(tried * x[i]);
            const float off = x[i] - 1 / tried * (float)(l < m ? l : m);
            new_error += w[i] * off * off;
        }
        if (t != 0 && new_error < error)
            error = new_error, factor = tried;
    }
    float along = 0, square = 0;
    for (int i = 0; i < n; i++) {
        const int nearest_code = nearest(factor * x[i]), l = nearest_code < m ? nearest_code : m;
        codes[i] = (uint8_t)l;
        along += w[i] * x[i] * (float)l;
        square += w[i] * (float)l * (float)l;
    }
    for (int pass = 0, changed = 1; pass < 5 && changed; pass++) {
        changed = 0;
        for (int i = 0; i < n; i++) {
            const float l = codes[i], rest = along - w[i] * x[i] * l;
            const float rest_square = square - w[i] * l * l;
            if (!(rest > 0 && rest_square > 0))
                continue;
            const int wanted = nearest(x[i] * rest_square / rest), new = wanted < m ? wanted : m;
            const float new_along = rest + w[i] * x[i] * (float)new;
            const float new_square = rest_square + w[i] * (float)new *(float)new;
            if (new != codes[i] && new_along * new_along * square > along * along * new_square) {
                codes[i] = (uint8_t)new;
                along = new_along, square = new_square;
                changed = 1;
            }
        }
    }
    return square > 0 ? along / square : 0;
}

/* Values that four bits stand for, of IQ4_NL and IQ4_XS. */
static const float curve[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                1,    13,   25,  38,  53,  69,  89,  113};

/* Which of these is nearest, halves up; and its value. */
INLINE lanes curve_code(lanes x)
{
    lanes code = lanes_all(0);
    for (int k = 1; k < 16; k++) {
        const lanes below =
            lanes_less(lanes_sub(x, lanes_all(curve[k - 1])), lanes_sub(lanes_all(curve[k]), x));
        code = lanes_add(code, lanes_sub(lanes_all(1), below));
    }
    return code;
}
INLINE lanes curve_value(lanes x)
{
    lanes value = lanes_all(curve[0]);
    for (int k = 1; k < 16; k++)
        value = lanes_if_less(lanes_sub(x, lanes_all(curve[k - 1])),
                              lanes_sub(lanes_all(curve[k]), x), value, lanes_all(curve[k]));
    return value;
}

/* The scale for which the curve's values come closest, of factors around curve[0] / farthest;
 * codes follow from it. ggml's quantize_row_iq4_nl_impl. */
SHARED lanes search_curve(const int n, const lanes *x, const lanes *w)
{
    const lanes zero = lanes_all(0), most = farthest(n, x);
    lanes scale = zero, best = zero;
    for (int t = -8; t <= 7; t++) {
        const lanes first =
            lanes_div(lanes_all(1), lanes_div(lanes_sub(zero, most), lanes_all(curve[0])));
        const lanes factor = t < -7 ? first : lanes_div(lanes_all((float)t + curve[0]), most);
        lanes along = zero, square = zero;
        for (int i = 0; i < n; i++) {
            const lanes q = curve_value(lanes_mul(factor, x[i])), wq = lanes_mul(w[i], q);
            along = lanes_add(along, lanes_mul(wq, x[i]));
            square = lanes_add(square, lanes_mul(wq, q));
        }
        const lanes any = lanes_less(zero, square), fitted = lanes_div(along, square);
        if (t < -7) {
            scale = lanes_choose(any, fitted, zero);
            best = lanes_mul(scale, along);
            continue;
        }
        const lanes better =
            lanes_both(any, lanes_less(lanes_mul(best, square), lanes_mul(along, along)));
        scale = lanes_choose(better, fitted, scale);
        best = lanes_choose(better, lanes_mul(fitted, along), best);
    }
    return lanes_choose(lanes_less(lanes_size(most), lanes_all(LEAST_GROUP)), zero, scale);
}

#endif
