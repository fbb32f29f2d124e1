#include "encode/encode.h"

#include "core/cpu.h"
#include "core/exact.h"
#include "matmul/weight_types.h"

int mtp_encodes(int32_t type) { return mtp_type_is_native(type) && mtp_type_block(type) > 1; }

static mtp_encode_row encoder(void)
{
    switch (mtp_isa()) {
#if defined(__x86_64__)
    case MTP_ISA_AVX2:
    case MTP_ISA_AVXVNNI:
        return mtp_encode_row_avx2;
    case MTP_ISA_AVX512:
    case MTP_ISA_AMX:
        return mtp_encode_row_avx512;
#elif defined(__aarch64__)
    case MTP_ISA_NEON:
    case MTP_ISA_I8MM:
        return mtp_encode_row_neon;
#endif
    default:
        return mtp_encode_row_portable;
    }
}

void mtp_encode(int32_t type, int64_t n_rows, int64_t n_cols, const float *x,
                const float *importance, uint8_t *blocks)
{
    const mtp_encode_row encode_row = encoder();
    for (int64_t row = 0; row < n_rows; row++)
        encode_row(type, n_cols, x + row * n_cols, importance,
                   blocks + row * mtp_row_bytes(type, n_cols));
}
