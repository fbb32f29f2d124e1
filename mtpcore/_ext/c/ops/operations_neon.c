#include "ops/operations.inc"

const mtp_operation mtp_operations_neon[MTP_KINDS] = OPERATIONS;
