/* A warp's block of 32 N values, N in each lane, as int8 codes with one scale: the same formula, and
 * bits, as on the CPU.
 *
 * code = x * (127 / amax) rounded to nearest even; the scale leaves these codes the least squared
 * error (c/quantise.h). Zeros (and blocks so small that amax / 127 is subnormal) get scale 0, a block
 * with a NaN or an infinity gets the scale NaN, which no product can lose.
 */
#define SMALLEST 1.17549435e-38f /* the smallest normal number */
#define LARGEST 3.40282347e+38f
#define REST_STEPS 16384.0f

/* Returns the scale; every lane must come here. */
template <int N> __device__ __forceinline__ float quantise_block(const float (&value)[N],
                                                                 int (&code)[N])
{
    unsigned largest = 0; /* bits of |x| order as integers, with NaN above infinity */
#pragma unroll
    for (int i = 0; i < N; i++) {
        const unsigned size = __float_as_uint(value[i]) & 0x7fffffffu;
        largest = size > largest ? size : largest;
    }
    for (int step = 16; step > 0; step >>= 1) {
        const unsigned other = __shfl_xor_sync(0xffffffffu, largest, step);
        largest = other > largest ? other : largest;
    }
    const float amax = __uint_as_float(largest);
    const float scale = __fdiv_rn(amax, 127.0f);
    const bool usable = scale >= SMALLEST && scale <= LARGEST;
    const float inverse = usable ? __fdiv_rn(127.0f, amax) : 0.0f;

    int along = 0, square = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float exact = usable ? __fmul_rn(value[i], inverse) : 0.0f;
        code[i] = __float2int_rn(exact);
        const int rest = __float2int_rn((exact - (float)code[i]) * REST_STEPS);
        along += rest * code[i];
        square += code[i] * code[i];
    }
    for (int step = 16; step > 0; step >>= 1) {
        along += __shfl_xor_sync(0xffffffffu, along, step);
        square += __shfl_xor_sync(0xffffffffu, square, step);
    }
    const float more = __fdiv_rn((float)along, __fmul_rn((float)square, REST_STEPS));
    const float fitted = __fadd_rn(scale, __fmul_rn(scale, more));
    return usable                  ? (fitted < SMALLEST ? SMALLEST : fitted)
           : largest < 0x7f800000u ? 0.0f
                                   : __uint_as_float(0x7fc00000u);
}

/* Stores a warp's block of 32 N values, number `at` of all, as codes with their scale and the sums of
 * sixteen codes each; every lane must come here. */
template <int N> __device__ __forceinline__ void store_block(const float (&value)[N], size_t at,
                                                             signed char *codes, float *scales,
                                                             short *sums)
{
    const int lane = threadIdx.x & 31;
    const size_t own = (at * 32 + lane) * N;
    int code[N], sum = 0;
    const float scale = quantise_block(value, code);
#pragma unroll
    for (int i = 0; i < N; i++) {
        codes[own + i] = (signed char)code[i];
        sum += code[i];
    }
    for (int step = 8 / N; step > 0; step >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane * N % 16 == 0)
        sums[own / 16] = (short)sum;
    if (lane == 0)
        scales[at] = scale;
}
