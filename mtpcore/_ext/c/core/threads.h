/* Threads as each system has them: threads_posix.c, threads_windows.c.
 *
 * Nothing of this fails but the start of a thread.
 */
#ifndef MTPCORE_THREADS_H
#define MTPCORE_THREADS_H

#include <stdint.h>

#if defined(_WIN32)
/* The system's own, SRWLOCK and CONDITION_VARIABLE; its header would bring thousands of names. */
typedef struct {
    void *state;
} mtp_mutex;
typedef struct {
    void *state;
} mtp_condition;
#define MTP_MUTEX_NEW {0}
#else
#include <pthread.h>
typedef pthread_mutex_t mtp_mutex;
typedef pthread_cond_t mtp_condition;
#define MTP_MUTEX_NEW PTHREAD_MUTEX_INITIALIZER
#endif

/* Make new ones, whatever was there. */
void mtp_mutex_new(mtp_mutex *mutex);
void mtp_condition_new(mtp_condition *condition);

void mtp_mutex_lock(mtp_mutex *mutex);
void mtp_mutex_unlock(mtp_mutex *mutex);

/* Sleep until all are woken, or for no reason; the mutex is this thread's before and after. */
void mtp_condition_wait(mtp_condition *condition, mtp_mutex *mutex);
void mtp_condition_wake_all(mtp_condition *condition);

/* Start a thread that nobody waits for, and that handles no signals of the program. Returns whether
 * it was started. */
int mtp_thread_start(void *(*work)(void *), void *argument);

/* Let others run on this core. */
void mtp_thread_yield(void);

/* What tells the calling thread from all others that live. */
uintptr_t mtp_thread_id(void);

/* Call a function in every child that is forked from now on; for ever. Nothing, where processes are
 * not forked. */
void mtp_after_forks(void (*in_child)(void));

#endif
