#define ENCODE_ROW mtp_encode_row_avx2
#include "encode/encode.inc"
