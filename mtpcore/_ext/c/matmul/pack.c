/* GGUF rows into packed groups. Row `r` of a group goes into lane `r` of every line. */
#include "matmul/pack.h"

#include "core/cpu.h"

static mtp_pack_rows *const *const packers[MTP_ISA_COUNT] = {
    [MTP_ISA_BASE] = mtp_packers_portable,
#if defined(__x86_64__)
    [MTP_ISA_AVX2] = mtp_packers_avx2,     [MTP_ISA_AVXVNNI] = mtp_packers_avx2,
    [MTP_ISA_AVX512] = mtp_packers_avx512, [MTP_ISA_AMX] = mtp_packers_avx512,
#elif defined(__aarch64__)
    [MTP_ISA_NEON] = mtp_packers_neon,
    [MTP_ISA_I8MM] = mtp_packers_neon,
#endif
};

size_t mtp_packed_bytes(int32_t type, int64_t n_rows, int64_t n_cols)
{
    const int64_t n_groups = (n_rows + MTP_GROUP_ROWS - 1) / MTP_GROUP_ROWS;
    return (size_t)(n_groups * mtp_group_bytes(type, n_cols));
}

void mtp_pack_group(int32_t type, int64_t n_rows, int64_t n_cols, const void *rows, int64_t row,
                    void *group)
{
    const int64_t n_blocks = n_cols / mtp_type_block(type);
    const int64_t row_bytes = mtp_row_bytes(type, n_cols), left = n_rows - row;
    packers[mtp_isa()][type]((const uint8_t *)rows + row * row_bytes, row_bytes, n_blocks,
                             left < MTP_GROUP_ROWS ? (int)left : MTP_GROUP_ROWS, group);
}

void mtp_pack(int32_t type, int64_t n_cols, const void *rows, int64_t row_begin, int64_t row_end,
              void *packed)
{
    const int64_t group_bytes = mtp_group_bytes(type, n_cols);
    for (int64_t row = row_begin; row < row_end; row += MTP_GROUP_ROWS)
        mtp_pack_group(type, row_end - row_begin, n_cols, rows, row - row_begin,
                       (char *)packed + row / MTP_GROUP_ROWS * group_bytes);
}
