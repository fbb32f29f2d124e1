#define ENCODE_ROW mtp_encode_row_avx512
#include "encode/encode.inc"
