#include "core/pool.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#include "core/clock.h"
#include "core/memory.h"
#include "core/rounding.h"
#include "core/threads.h"

/* Who waits longer than a phase's threads differ by yields: a sibling may be waiting for this
 * core. It sleeps only much later: a virtual core that rests is woken through the host, which
 * takes longer than a phase, and then the others fall asleep at the next barrier in their turn. */
enum {
    LINE = 64,
    SPIN_NS = 20 * 1000,
    BARRIER_YIELD_NS = 1000 * 1000,
    IDLE_YIELD_NS = 100 * 1000,
    PAUSES_BETWEEN_CLOCKS = 32
};

/* What many threads write lies on cache lines of its own. */
struct mtp_pool {
    int n_threads;
    int has_workers;
    mtp_mutex region; /* held while a region runs */
    mtp_mutex sleep;
    mtp_condition wake;
    mtp_task task;
    void *argument;
    int order; /* of this region's threads */
    int turn;  /* how many of them have passed it on since the last barrier */
    _Alignas(LINE) _Atomic uint32_t n_regions;
    _Alignas(LINE) _Atomic int n_arrived;
    _Alignas(LINE) _Atomic uint32_t n_barriers;
    _Alignas(LINE) _Atomic int n_asleep;
};

static mtp_pool *pools[MTP_MAX_THREADS + 1];
static mtp_mutex pools_lock = MTP_MUTEX_NEW;

static void pause_core(void)
{
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Wait until *counter differs from `seen`: spinning first, then yielding, then asleep. */
static void wait_for_change(mtp_pool *pool, _Atomic uint32_t *counter, uint32_t seen,
                            int64_t yield_ns)
{
    int64_t begin = 0;
    for (;;) {
        for (int i = 0; i < PAUSES_BETWEEN_CLOCKS; i++) {
            if (atomic_load_explicit(counter, memory_order_acquire) != seen)
                return;
            pause_core();
        }
        const int64_t now = mtp_now_ns();
        if (begin == 0)
            begin = now;
        else if (now > begin + yield_ns)
            break;
        else if (now > begin + SPIN_NS)
            mtp_thread_yield();
    }
    mtp_mutex_lock(&pool->sleep);
    atomic_fetch_add(&pool->n_asleep,
                     1); /* before the check: whoever changes it looks here after */
    while (atomic_load(counter) == seen)
        mtp_condition_wait(&pool->wake, &pool->sleep);
    atomic_fetch_sub(&pool->n_asleep, 1);
    mtp_mutex_unlock(&pool->sleep);
}

static void change(mtp_pool *pool, _Atomic uint32_t *counter)
{
    atomic_fetch_add(counter, 1);
    if (atomic_load(&pool->n_asleep) > 0) {
        mtp_mutex_lock(&pool->sleep);
        mtp_condition_wake_all(&pool->wake);
        mtp_mutex_unlock(&pool->sleep);
    }
}

static _Atomic int wanted_order = MTP_TOGETHER;
static _Thread_local int rank = -1; /* in a region whose threads take turns */

int mtp_pool_order(int order) { return atomic_exchange(&wanted_order, order); }

static void take_turn(mtp_pool *pool)
{
    mtp_mutex_lock(&pool->sleep);
    while (pool->turn != rank)
        mtp_condition_wait(&pool->wake, &pool->sleep);
    mtp_mutex_unlock(&pool->sleep);
}

static void pass_turn(mtp_pool *pool)
{
    mtp_mutex_lock(&pool->sleep);
    pool->turn = (rank + 1) % pool->n_threads;
    mtp_condition_wake_all(&pool->wake);
    mtp_mutex_unlock(&pool->sleep);
}

static void meet(mtp_pool *pool)
{
    const uint32_t seen = atomic_load_explicit(&pool->n_barriers, memory_order_relaxed);
    if (atomic_fetch_add(&pool->n_arrived, 1) + 1 == pool->n_threads) {
        atomic_store_explicit(&pool->n_arrived, 0, memory_order_relaxed);
        change(pool, &pool->n_barriers);
    } else {
        wait_for_change(pool, &pool->n_barriers, seen, BARRIER_YIELD_NS);
    }
}

void mtp_pool_wait(mtp_pool *pool)
{
    if (rank < 0) {
        meet(pool);
        return;
    }
    pass_turn(pool);
    meet(pool);
    take_turn(pool);
}

static void run_rounded(mtp_task task, void *argument, int thread, int n_threads)
{
    const unsigned before = mtp_round_to_nearest();
    task(argument, thread, n_threads);
    mtp_round_as(before);
}

/* A thread's part of the region, and the barrier at its end. */
static void take_part(mtp_pool *pool, int thread)
{
    const int n = pool->n_threads;
    if (pool->order != MTP_TOGETHER) {
        rank = pool->order == MTP_FIRST_TO_LAST ? thread : n - 1 - thread;
        take_turn(pool);
        run_rounded(pool->task, pool->argument, thread, n);
        pass_turn(pool);
        rank = -1;
    } else {
        run_rounded(pool->task, pool->argument, thread, n);
    }
    meet(pool);
}

void mtp_run_alone(mtp_task task, void *argument) { run_rounded(task, argument, 0, 1); }

typedef struct {
    mtp_pool *pool;
    int thread;
    uint32_t n_regions;
} worker;

static void *work(void *argument)
{
    worker self = *(worker *)argument;
    free(argument);
    for (;;) {
        wait_for_change(self.pool, &self.pool->n_regions, self.n_regions, IDLE_YIELD_NS);
        self.n_regions++;
        take_part(self.pool, self.thread);
    }
    return NULL;
}

/* Workers of a team that could not be completed wait for ever; nothing else can be done. */
static int start_workers(mtp_pool *pool)
{
    int started = 1;
    for (int i = 1; i < pool->n_threads && started; i++) {
        worker *self = malloc(sizeof *self);
        if (self == NULL)
            return 0;
        *self = (worker){pool, i, atomic_load(&pool->n_regions)};
        started = mtp_thread_start(work, self);
        if (!started)
            free(self);
    }
    return started;
}

void mtp_pool_run(mtp_pool *pool, mtp_task task, void *argument)
{
    static _Thread_local int is_inside;
    if (is_inside) {
        mtp_run_alone(task, argument);
        return;
    }
    is_inside = 1;
    mtp_mutex_lock(&pool->region);
    if (pool->has_workers == 0)
        pool->has_workers = pool->n_threads > 1 && start_workers(pool) ? 1 : -1;
    if (pool->has_workers < 0) {
        mtp_run_alone(task, argument);
    } else {
        pool->task = task;
        pool->argument = argument;
        pool->order = atomic_load(&wanted_order);
        pool->turn = 0;
        change(pool, &pool->n_regions);
        take_part(pool, 0);
    }
    mtp_mutex_unlock(&pool->region);
    is_inside = 0;
}

static void clear(mtp_pool *pool)
{
    mtp_mutex_new(&pool->region);
    mtp_mutex_new(&pool->sleep);
    mtp_condition_new(&pool->wake);
    pool->has_workers = 0;
    atomic_store(&pool->n_arrived, 0);
    atomic_store(&pool->n_asleep, 0);
}

/* Only the thread that forked lives in the child. */
static void forget_workers(void)
{
    mtp_mutex_new(&pools_lock);
    for (int n = 0; n <= MTP_MAX_THREADS; n++)
        if (pools[n] != NULL)
            clear(pools[n]);
}

__attribute__((constructor)) static void watch_forks(void) { mtp_after_forks(forget_workers); }

mtp_pool *mtp_pool_of(int n_threads)
{
    mtp_mutex_lock(&pools_lock);
    mtp_pool *pool = pools[n_threads];
    if (pool == NULL) {
        pool = mtp_memory_new(sizeof *pool);
        if (pool != NULL) {
            pool->n_threads = n_threads;
            atomic_store(&pool->n_regions, 0);
            atomic_store(&pool->n_barriers, 0);
            clear(pool);
            pools[n_threads] = pool;
        }
    }
    mtp_mutex_unlock(&pools_lock);
    return pool;
}
