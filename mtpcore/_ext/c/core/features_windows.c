#include "core/features.h"

/* Windows 11 wants to be asked as Linux does. Nobody has tried, so AVX-512 is used. */
int mtp_may_use_tiles(void) { return 0; }

/* Only x86-64 is built. */
int mtp_has_dot_products(void) { return 0; }

int mtp_has_matrix_products(void) { return 0; }
