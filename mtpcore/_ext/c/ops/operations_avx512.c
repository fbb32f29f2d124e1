#include "ops/operations.inc"

const mtp_operation mtp_operations_avx512[MTP_KINDS] = OPERATIONS;
