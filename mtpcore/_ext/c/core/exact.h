/* No fast-math: every file that computes includes this one. setup.py asks for nothing of the kind,
 * but CFLAGS of the environment come before its own flags, and some of those would stay. */
#ifndef MTPCORE_EXACT_H
#define MTPCORE_EXACT_H

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) ||           \
    defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || defined(__NO_SIGNED_ZEROS__)
#error "mtpcore: equal bits need IEEE arithmetic; take -ffast-math and its parts out of CFLAGS"
#endif

#endif
