/* What the kernels in tile registers share. */
#ifndef MTPCORE_MATMUL_TILE_REGISTERS_H
#define MTPCORE_MATMUL_TILE_REGISTERS_H

#include "matmul/kernels_avx512.h"

/* What LDTILECFG reads. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t n_rows[16];
} mtp_tile_shapes;

#endif
