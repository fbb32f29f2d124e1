#include "core/threads.h"

#include <stdlib.h>
#include <windows.h>

_Static_assert(sizeof(mtp_mutex) == sizeof(SRWLOCK), "a mutex is the system's");
_Static_assert(sizeof(mtp_condition) == sizeof(CONDITION_VARIABLE), "a condition is the system's");

static SRWLOCK *lock_of(mtp_mutex *mutex) { return (SRWLOCK *)&mutex->state; }

static CONDITION_VARIABLE *variable_of(mtp_condition *condition)
{
    return (CONDITION_VARIABLE *)&condition->state;
}

void mtp_mutex_new(mtp_mutex *mutex) { InitializeSRWLock(lock_of(mutex)); }

void mtp_condition_new(mtp_condition *condition)
{
    InitializeConditionVariable(variable_of(condition));
}

void mtp_mutex_lock(mtp_mutex *mutex) { AcquireSRWLockExclusive(lock_of(mutex)); }

void mtp_mutex_unlock(mtp_mutex *mutex) { ReleaseSRWLockExclusive(lock_of(mutex)); }

void mtp_condition_wait(mtp_condition *condition, mtp_mutex *mutex)
{
    SleepConditionVariableSRW(variable_of(condition), lock_of(mutex), INFINITE, 0);
}

void mtp_condition_wake_all(mtp_condition *condition)
{
    WakeAllConditionVariable(variable_of(condition));
}

typedef struct {
    void *(*work)(void *);
    void *argument;
} start;

static DWORD WINAPI begin(void *given)
{
    const start self = *(start *)given;
    free(given);
    self.work(self.argument);
    return 0;
}

int mtp_thread_start(void *(*work)(void *), void *argument)
{
    start *given = malloc(sizeof *given);
    if (given == NULL)
        return 0;
    *given = (start){work, argument};
    const HANDLE thread = CreateThread(NULL, 0, begin, given, 0, NULL);
    if (thread == NULL) {
        free(given);
        return 0;
    }
    CloseHandle(thread); /* it runs on */
    return 1;
}

void mtp_thread_yield(void) { SwitchToThread(); }

uintptr_t mtp_thread_id(void) { return GetCurrentThreadId(); }

void mtp_after_forks(void (*in_child)(void)) { (void)in_child; }
