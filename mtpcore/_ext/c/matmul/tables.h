/* Values of the types whose codes are places in a table. */
#ifndef MTPCORE_MATMUL_TABLES_H
#define MTPCORE_MATMUL_TABLES_H

#include <stdint.h>

/* IQ4_NL and IQ4_XS. */
static const int8_t mtp_iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};

/* MXFP4: twice the values of a float with two bits of exponent and one of fraction. */
static const int8_t mtp_mxfp4_values[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                            0, -1, -2, -3, -4, -6, -8, -12};

#endif
