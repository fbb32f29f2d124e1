/* Which instruction set the kernels use: the best that the machine runs, or MTPCORE_ISA.
 *
 * The environment is read once, when the library is loaded. A value that is unknown or that this
 * machine cannot run leaves the portable set in use and is reported by mtp_isa_refused(), so that
 * the importing Python module can raise it as an error.
 */
#ifndef MTPCORE_CPU_H
#define MTPCORE_CPU_H

enum { MTP_ISA_BASE = 0, MTP_ISA_AVX2 = 1, MTP_ISA_AVX512 = 2, MTP_ISA_COUNT = 3 };

const char *mtp_isa_name(int isa);
int mtp_isa_named(const char *name); /* -1 when no set has this name */
int mtp_isa_supported(int isa);

int mtp_isa(void);         /* the set in use */
int mtp_isa_use(int isa);  /* for tests, between calls; -1 when the machine cannot run it */
int mtp_isa_refused(void); /* nonzero: MTPCORE_ISA names no set that can be used here */

#endif
