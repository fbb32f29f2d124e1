/* Which instruction set the kernels use: the best that the machine runs, or MTPCORE_ISA; and how
 * they prefetch weights: in the fastest way measured (matmul/fetch_choice.h), or MTPCORE_FETCH.
 *
 * The environment is read once, when the library is loaded. A value that is unknown or that this
 * machine cannot run leaves the portable set in use, or the choice automatic, and is reported by
 * mtp_isa_refused() or mtp_fetch_refused(), so that the importing Python module can raise it as an
 * error. No result depends on either.
 */
#ifndef MTPCORE_CPU_H
#define MTPCORE_CPU_H

enum {
    MTP_ISA_BASE = 0,
    MTP_ISA_AVX2 = 1,
    MTP_ISA_AVXVNNI = 2, /* AVX2, and dot products of bytes */
    MTP_ISA_AVX512 = 3,
    MTP_ISA_AMX = 4,  /* AVX-512, and products of tiles of bytes */
    MTP_ISA_NEON = 5, /* on aarch64, with dot products of bytes */
    MTP_ISA_I8MM = 6, /* NEON, and products of matrices of bytes */
    MTP_ISA_COUNT = 7
};

const char *mtp_isa_name(int isa);
int mtp_isa_named(const char *name); /* -1 when no set has this name */
int mtp_isa_supported(int isa);

int mtp_isa(void);         /* the set in use */
int mtp_isa_use(int isa);  /* for tests, between calls; -1 when the machine cannot run it */
int mtp_isa_refused(void); /* nonzero: MTPCORE_ISA names no set that can be used here */

/* Ways to prefetch weights: the lines that come next, into the first-level cache or the second; the
 * window that comes next, a line of each of its pages in turn; or what the hardware does by itself.
 * MTP_FETCH_AUTO: the fastest of them. */
enum {
    MTP_FETCH_LINES = 0,
    MTP_FETCH_LINES_L2 = 1,
    MTP_FETCH_PAGES = 2,
    MTP_FETCH_NONE = 3,
    MTP_FETCH_WAYS = 4,
    MTP_FETCH_AUTO = 4,
    MTP_FETCH_COUNT = 5
};

const char *mtp_fetch_name(int fetch);
int mtp_fetch_named(const char *name); /* -1 when nothing has this name */

int mtp_fetch(void);          /* a way, or MTP_FETCH_AUTO */
int mtp_fetch_use(int fetch); /* between calls; -1 when there is no such way */
int mtp_fetch_refused(void);  /* nonzero: MTPCORE_FETCH names no way */
int mtp_fetch_default(void);  /* the way where nothing was measured */

enum { MTP_LINE = 64 /* bytes of a line of the caches */ };

int mtp_first_level_bytes(void); /* of a core's cache of data, as far as the machine says */

#endif
