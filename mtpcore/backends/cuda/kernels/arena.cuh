/* SHARED bytes of shared memory, of which a launch has as many as its kernel's variant says. The emulated
 * device has an arena of its own.
 */
#ifndef MTPCORE_EMULATED
#define ARENA extern __shared__ uint4 arena[]
#endif
