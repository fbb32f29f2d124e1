#include "matmul/quantise.h"

MTP_DEFINE_QUANTISE(neon)
