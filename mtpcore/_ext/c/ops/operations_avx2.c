#include "ops/operations.inc"

const mtp_operation mtp_operations_avx2[MTP_KINDS] = OPERATIONS;
