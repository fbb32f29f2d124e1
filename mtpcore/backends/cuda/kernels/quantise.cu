/* Blocks of BLOCK (32 or 256) activations as int8 with one scale: the same formula, and bits, as on
 * the CPU.
 *
 * code = x * (127 / amax) rounded to nearest even; the scale leaves these codes the least squared
 * error (c/quantise.h). Zeros (and blocks so small that amax / 127 is subnormal) get scale 0, a block
 * with a NaN or an infinity gets the scale NaN, which no product can lose. `sums` are of 16 codes
 * each. One warp for a block. Grid: (blocks of a row / 8 rounded up, rows). Block: 256.
 */
#define THREADS 256
#define OF_LANE (BLOCK / 32)
#define SMALLEST 1.17549435e-38f /* the smallest normal number */
#define LARGEST 3.40282347e+38f
#define REST_STEPS 16384.0f

extern "C" __global__ void __launch_bounds__(THREADS)
    quantise(const float *__restrict__ x, signed char *__restrict__ codes,
             float *__restrict__ scales, short *__restrict__ sums, int n_blocks)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int block = blockIdx.x * (THREADS / 32) + warp;
    if (block >= n_blocks) /* a whole warp */
        return;
    const size_t at = (size_t)blockIdx.y * n_blocks + block;
    const size_t own = at * BLOCK + lane * OF_LANE;

    /* Bits of |x| order as integers, with NaN above infinity. */
    float value[OF_LANE];
    unsigned largest = 0;
#pragma unroll
    for (int i = 0; i < OF_LANE; i++) {
        value[i] = x[own + i];
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

    int along = 0, square = 0, sum = 0;
#pragma unroll
    for (int i = 0; i < OF_LANE; i++) {
        const float exact = usable ? __fmul_rn(value[i], inverse) : 0.0f;
        const int code = __float2int_rn(exact);
        const int rest = __float2int_rn((exact - (float)code) * REST_STEPS);
        codes[own + i] = (signed char)code;
        along += rest * code;
        square += code * code;
        sum += code;
    }
    for (int step = 16; step > 0; step >>= 1) {
        along += __shfl_xor_sync(0xffffffffu, along, step);
        square += __shfl_xor_sync(0xffffffffu, square, step);
        if (step * OF_LANE < 16)
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
    }
    if (lane * OF_LANE % 16 == 0)
        sums[own / 16] = (short)sum;
    if (lane > 0)
        return;
    const float more = __fdiv_rn((float)along, __fmul_rn((float)square, REST_STEPS));
    const float fitted = __fadd_rn(scale, __fmul_rn(scale, more));
    scales[at] = usable                  ? (fitted < SMALLEST ? SMALLEST : fitted)
                 : largest < 0x7f800000u ? 0.0f
                                         : __uint_as_float(0x7fc00000u);
}
