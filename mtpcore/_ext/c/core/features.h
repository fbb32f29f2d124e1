/* What only the system says of the processor: features_linux.c, features_darwin.c,
 * features_windows.c. Who is asked on a processor of another family says no. */
#ifndef MTPCORE_FEATURES_H
#define MTPCORE_FEATURES_H

/* x86-64: whether this process may use tiles, if the processor has them; asked once for all threads
 * and from then on. */
int mtp_may_use_tiles(void);

/* aarch64: dot products of bytes, with all of Armv8.2, which the compiler may use too; and products
 * of matrices of bytes. */
int mtp_has_dot_products(void);
int mtp_has_matrix_products(void);

#endif
