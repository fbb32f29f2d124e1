/* Ending a run early.
 *
 * While a run takes long, the thread that began it asks now and then whether to go on. Where the
 * answer is no, every thread skips what is left of its work, but meets the others at every barrier,
 * so that all of them leave the region together. What the run wrote is undefined then.
 *
 * An operation that runs never reads what another one skipped: where threads read of each other
 * there is a barrier, and after it they all see what each of them saw before it.
 */
#ifndef MTPCORE_INTERRUPT_H
#define MTPCORE_INTERRUPT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    int (*is_wanted)(void *argument); /* whether to end */
    void *argument;
    uintptr_t asking; /* the thread that began the run, and asks */
    int64_t asked_ns; /* when it asked lastly; 0: not yet */
    _Atomic int is_set;
    _Atomic int64_t n_begun; /* operations that it has begun */
} mtp_interrupt;

/* Begin to watch a run, by the thread that is to ask. */
void mtp_interrupt_begin(mtp_interrupt *self);

/* Whether to skip the next operation, after n_begun others. */
int mtp_interrupt_skips(mtp_interrupt *self, int64_t n_begun);

/* Whether to end, as far as is known; asks, if that is this thread's to do, and long enough ago. */
int mtp_interrupt_check(mtp_interrupt *self);

/* Whether to skip what is left of a run; NULL: it cannot be interrupted. */
static inline int mtp_is_interrupted(mtp_interrupt *self)
{
    return self != NULL && mtp_interrupt_check(self);
}

/* The same without asking: after a barrier the answer is one for all threads. */
static inline int mtp_was_interrupted(mtp_interrupt *self)
{
    return self != NULL && atomic_load_explicit(&self->is_set, memory_order_relaxed);
}

#endif
