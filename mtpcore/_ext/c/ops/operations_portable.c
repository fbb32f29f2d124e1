#include "ops/operations.inc"

const mtp_operation mtp_operations_portable[MTP_KINDS] = OPERATIONS;
