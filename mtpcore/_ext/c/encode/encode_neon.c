#define ENCODE_ROW mtp_encode_row_neon
#include "encode/encode.inc"
