#define _POSIX_C_SOURCE 200809L
#include "core/threads.h"

#include <sched.h>
#include <signal.h>

void mtp_mutex_new(mtp_mutex *mutex) { pthread_mutex_init(mutex, NULL); }

void mtp_condition_new(mtp_condition *condition) { pthread_cond_init(condition, NULL); }

void mtp_mutex_lock(mtp_mutex *mutex) { pthread_mutex_lock(mutex); }

void mtp_mutex_unlock(mtp_mutex *mutex) { pthread_mutex_unlock(mutex); }

void mtp_condition_wait(mtp_condition *condition, mtp_mutex *mutex)
{
    pthread_cond_wait(condition, mutex);
}

void mtp_condition_wake_all(mtp_condition *condition) { pthread_cond_broadcast(condition); }

int mtp_thread_start(void *(*work)(void *), void *argument)
{
    sigset_t all, before;
    pthread_t id;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the new thread takes over what is blocked */
    const int started = pthread_create(&id, NULL, work, argument) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started)
        pthread_detach(id);
    return started;
}

void mtp_thread_yield(void) { sched_yield(); }

uintptr_t mtp_thread_id(void) { return (uintptr_t)pthread_self(); }

void mtp_after_forks(void (*in_child)(void)) { pthread_atfork(NULL, NULL, in_child); }
