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

/* Eight values that lie on sixteen bytes, asked for together. */
__device__ __forceinline__ void load_eight(float (&into)[8], const float *from)
{
    const float4 low = *(const float4 *)from, high = *(const float4 *)(from + 4);
    into[0] = low.x, into[1] = low.y, into[2] = low.z, into[3] = low.w;
    into[4] = high.x, into[5] = high.y, into[6] = high.z, into[7] = high.w;
}

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
 * codes, in the order in which matmul.cu reads them; every lane must come here.
 *
 * Of 32 columns lane 4 g + q of a product takes columns 4q.. and 16 + 4q... A block's codes lie by q,
 * for each q by product. `sums` has four bytes for every 32 codes: their sum, or of a block of 256
 * those of 16 codes each in two bytes, of which the low one is signed: for each q the low bytes of
 * four sums, then the high ones.
 */
template <int N>
__device__ __forceinline__ void store_block(const float (&value)[N], size_t at, signed char *codes,
                                            float *scales, short *sums)
{
    const int lane = threadIdx.x & 31;
    int code[N], sum = 0;
    const float scale = quantise_block(value, code);
#pragma unroll
    for (int i = 0; i < N; i++)
        sum += code[i];
    for (int step = N == 1 ? 16 : 1; step > 0; step >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    codes += at * 32 * N;
    sums += at * 2 * N;
    if constexpr (N == 1) {
        codes[lane % 16 / 4 * 8 + lane / 16 * 4 + lane % 4] = (signed char)code[0];
        if (lane == 0)
            *(int *)sums = sum;
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int four = lane % 4 * 2 + i / 4;
            codes[four % 4 * 64 + lane / 4 * 8 + four / 4 * 4 + i % 4] = (signed char)code[i];
        }
        if (lane % 2 == 0) {
            const int part = lane / 2, high = (sum + 128) >> 8;
            signed char *own = (signed char *)sums + part / 4 * 8 + part % 4;
            own[0] = (signed char)(sum - 256 * high), own[4] = (signed char)high;
        }
    }
    if (lane == 0)
        scales[at] = scale;
}
