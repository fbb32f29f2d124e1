/* y[t][r] = sum_k w[r][k] x[t][k] + bias[r], quantised weights times int8 activations, few rows.
 *
 * One CTA makes 16 outputs for 8 tokens. Its 8 warps each walk a fixed eighth of the blocks in
 * ascending order, one tensor-core product (16 x 32 by 32 x 8, exact in int32) a block and one
 * chain of fused multiply-adds; the eighths are added in warp order. The split depends on the
 * matrix alone, and a column of a product on its own token alone: a token's bits are the same
 * alone, in a batch and beside any neighbours. Missing tokens are columns of zeros.
 *
 * Weights lie in the order in which lanes read them (see layout.py): for each tile of 16 rows and
 * each block of 32 columns, BITS / 2 * 4 bytes a lane, and 16 float16 scales.
 * BITS is 8 (Q8_0) or 4 (Q4_0). Grid: (tiles, tokens / 8 rounded up). Block: 256.
 */
#define WARPS 8

#ifndef MTPCORE_EMULATED
/* Float16 bits to float; written out, since CUDA's headers are no part of the compiler's package. */
static __device__ __forceinline__ float widen(unsigned short half)
{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
}

static __device__ __forceinline__ void multiply(int (&sum)[4], const unsigned (&a)[4], unsigned b0,
                                                unsigned b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=r"(sum[0]), "=r"(sum[1]), "=r"(sum[2]), "=r"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}
#endif

/* unpack() makes of a lane's codes its registers of the product's left side: rows g and g + 8,
 * columns 4q.. and 16 + 4q.. of the block. */
#if BITS == 8
typedef uint4 Codes;

static __device__ __forceinline__ void unpack(unsigned (&a)[4], Codes codes)
{
    a[0] = codes.x, a[1] = codes.y, a[2] = codes.z, a[3] = codes.w;
}
#else
typedef uint2 Codes;

/* Four unsigned nibbles, one in each byte, minus 8 each; no borrow crosses a byte. */
static __device__ __forceinline__ unsigned minus8(unsigned nibbles)
{
    return ((nibbles | 0x80808080u) - 0x08080808u) ^ 0x80808080u;
}

static __device__ __forceinline__ void unpack(unsigned (&a)[4], Codes codes)
{
    a[0] = minus8(codes.x & 0x0f0f0f0fu);
    a[1] = minus8(codes.y & 0x0f0f0f0fu);
    a[2] = minus8(codes.x >> 4 & 0x0f0f0f0fu);
    a[3] = minus8(codes.y >> 4 & 0x0f0f0f0fu);
}
#endif

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    matmul(const Codes *__restrict__ codes, const unsigned short *__restrict__ scales,
           const unsigned *__restrict__ x, const float *__restrict__ x_scales,
           const float *__restrict__ bias, float *__restrict__ y, int n_rows, int n_blocks,
           int n_tokens)
{
    __shared__ float partial[WARPS][128];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int g = lane >> 2, q = lane & 3;
    const int first_token = blockIdx.y * 8;
    const int begin = (int)((long long)n_blocks * warp / WARPS);
    const int end = (int)((long long)n_blocks * (warp + 1) / WARPS);
    /* This lane feeds token g to the product and receives tokens 2q and 2q + 1 from it. */
    const bool feeds = first_token + g < n_tokens;
    const bool takes0 = first_token + 2 * q < n_tokens;
    const bool takes1 = first_token + 2 * q + 1 < n_tokens;
    const unsigned *in = x + (size_t)(first_token + g) * n_blocks * 8 + q;
    const float *scale0 = x_scales + (size_t)(first_token + 2 * q) * n_blocks;
    const float *scale1 = scale0 + n_blocks;
    const size_t tile = (size_t)blockIdx.x * n_blocks;

    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 4
    for (int block = begin; block < end; block++) {
        unsigned a[4];
        unpack(a, codes[(tile + block) * 32 + lane]);
        const unsigned b0 = feeds ? in[(size_t)block * 8] : 0;
        const unsigned b1 = feeds ? in[(size_t)block * 8 + 4] : 0;
        int product[4];
        multiply(product, a, b0, b1);
        const float w0 = widen(scales[(tile + block) * 16 + g]);
        const float w1 = widen(scales[(tile + block) * 16 + g + 8]);
        const float x0 = takes0 ? scale0[block] : 0.0f;
        const float x1 = takes1 ? scale1[block] : 0.0f;
        sum[0] = fmaf((float)product[0], w0 * x0, sum[0]);
        sum[1] = fmaf((float)product[1], w0 * x1, sum[1]);
        sum[2] = fmaf((float)product[2], w1 * x0, sum[2]);
        sum[3] = fmaf((float)product[3], w1 * x1, sum[3]);
    }
    for (int i = 0; i < 4; i++) {
        const int row = g + (i >> 1) * 8, token = 2 * q + (i & 1);
        partial[warp][token * 16 + row] = sum[i];
    }
    __syncthreads();

    if (threadIdx.x < 128) {
        const int row = blockIdx.x * 16 + (threadIdx.x & 15);
        const int token = first_token + (threadIdx.x >> 4);
        if (row < n_rows && token < n_tokens) {
            float total = partial[0][threadIdx.x];
            for (int i = 1; i < WARPS; i++)
                total += partial[i][threadIdx.x];
            y[(size_t)token * n_rows + row] = bias ? total + bias[row] : total;
        }
    }
}
