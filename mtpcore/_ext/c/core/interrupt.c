#include "core/interrupt.h"

#include "core/clock.h"
#include "core/threads.h"

/* Who asks may have to wait for other threads of the program, so not too often. */
static const int64_t PAUSE_NS = 100 * 1000 * 1000;

void mtp_interrupt_begin(mtp_interrupt *self)
{
    self->asking = mtp_thread_id();
    self->asked_ns = 0;
    atomic_store_explicit(&self->is_set, 0, memory_order_relaxed);
    atomic_store_explicit(&self->n_begun, 0, memory_order_relaxed);
}

static void ask(mtp_interrupt *self)
{
    const int64_t now = mtp_now_ns();
    if (self->asked_ns == 0)
        self->asked_ns = now;
    if (now - self->asked_ns < PAUSE_NS)
        return;
    if (self->is_wanted(self->argument))
        atomic_store_explicit(&self->is_set, 1, memory_order_relaxed);
    self->asked_ns = mtp_now_ns();
}

int mtp_interrupt_check(mtp_interrupt *self)
{
    const int is_set = atomic_load_explicit(&self->is_set, memory_order_relaxed);
    if (is_set || self->asking != mtp_thread_id())
        return is_set;
    ask(self);
    return atomic_load_explicit(&self->is_set, memory_order_relaxed);
}

int mtp_interrupt_skips(mtp_interrupt *self, int64_t n_begun)
{
    if (self->asking == mtp_thread_id())
        atomic_store_explicit(&self->n_begun, n_begun, memory_order_relaxed);
    return mtp_interrupt_check(self);
}
