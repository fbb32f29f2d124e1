#include "matmul/quantise.h"

MTP_DEFINE_QUANTISE(avx2)
