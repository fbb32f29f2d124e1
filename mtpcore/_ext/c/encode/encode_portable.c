#define ENCODE_ROW mtp_encode_row_portable
#include "encode/encode.inc"
