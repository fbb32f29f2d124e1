/* What the system gives, as far as C can see: memory, and threads that wait for each other. */
#include <stdlib.h>

#include "compare.h"
#include "core/clock.h"
#include "core/memory.h"
#include "core/pool.h"
#include "core/threads.h"

static int is_zero(const unsigned char *memory, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memory[i] != 0)
            return 0;
    return 1;
}

void check_memory(void)
{
    const size_t sizes[] = {0, 1, 4095, 1 << 20, (5 << 20) + 7};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const size_t n = sizes[i];
        unsigned char *plain = mtp_memory_new(n), *zeroed = mtp_memory_zeros(n);
        if (plain == NULL || zeroed == NULL)
            abort();
        const uintptr_t boundary = n < 4 << 20 ? 64 : 2 << 20;
        check("boundary of memory", (double)n, (uintptr_t)plain % boundary == 0);
        check("boundary of zeros", (double)n, (uintptr_t)zeroed % 64 == 0);
        check("zeros", (double)n, is_zero(zeroed, n));
        for (size_t j = 0; j < n; j++)
            plain[j] = zeroed[j] = 0xa5;
        mtp_memory_free(plain);
        mtp_memory_free_zeros(zeroed);
    }
    mtp_memory_free(NULL);
    mtp_memory_free_zeros(NULL);
    check("more memory than there is", 0, mtp_memory_zeros(SIZE_MAX - 1) == NULL);
}

enum { THREADS = 4, MEETINGS = 200, REGIONS = 20 };

typedef struct {
    mtp_pool *pool;
    int at[THREADS]; /* the meeting that each thread comes to, or has left */
    int n_late, n_ran;
    uintptr_t id[THREADS];
} meetings;

/* Nobody leaves a meeting before all have come, nor comes to the next before all have looked. */
static void meet(void *argument, int thread, int n_threads)
{
    meetings *all = argument;
    all->id[thread] = mtp_thread_id();
    for (int i = 1; i <= MEETINGS; i++) {
        all->at[thread] = i;
        mtp_pool_wait(all->pool);
        for (int other = 0; thread == 0 && other < n_threads; other++)
            all->n_late += all->at[other] != i;
        mtp_pool_wait(all->pool);
    }
    if (thread == 0)
        all->n_ran = n_threads;
}

static void sleep_until(int64_t end)
{
    while (mtp_now_ns() < end)
        mtp_thread_yield();
}

void check_threads(void)
{
    meetings all = {mtp_pool_of(THREADS), {0}, 0, 0, {0}};
    if (all.pool == NULL)
        abort();
    const int orders[] = {MTP_TOGETHER, MTP_FIRST_TO_LAST, MTP_LAST_TO_FIRST};
    for (int region = 0; region < REGIONS; region++) {
        mtp_pool_order(orders[region % 3]);
        all.n_ran = 0;
        mtp_pool_run(all.pool, meet, &all);
        check("threads of a region", region, all.n_ran == THREADS);
        if (region % 5 == 4)
            sleep_until(mtp_now_ns() + 3 * 1000 * 1000); /* until the workers are asleep */
    }
    mtp_pool_order(MTP_TOGETHER);
    check("threads that were late", all.n_late, all.n_late == 0);
    for (int i = 0; i < THREADS; i++)
        for (int j = 0; j < i; j++)
            check("the same thread twice", i, all.id[i] != all.id[j]);
    check("the caller as a thread", 0, all.id[0] == mtp_thread_id());
}
