/* A pool of threads of our own: one parallel region at a time, barriers inside it.
 *
 * Workers are the same from call to call. In a region they meet at spinning barriers; after it they
 * stay hot for a moment, since the next region usually follows soon, and then sleep. A forked child
 * starts workers of its own at its first region. Every thread of a region rounds to nearest and
 * keeps subnormal numbers, whatever foreign libraries have switched on.
 */
#ifndef MTPCORE_POOL_H
#define MTPCORE_POOL_H

enum { MTP_MAX_THREADS = 256 };

typedef struct mtp_pool mtp_pool;
typedef void (*mtp_task)(void *argument, int thread, int n_threads);

/* The pool of this many threads (1..MTP_MAX_THREADS), the caller's included; made at the first
 * call, shared by the whole process, never freed. NULL if there is no memory. */
mtp_pool *mtp_pool_of(int n_threads);

/* Run the task once on every thread and return when all are done. The caller is thread 0. Where no
 * workers can be started the caller runs it alone, with n_threads = 1; and so it does inside a
 * region of its own, as a signal handler may. */
void mtp_pool_run(mtp_pool *pool, mtp_task task, void *argument);

/* Run the task on the caller alone, under the same rounding. */
void mtp_run_alone(mtp_task task, void *argument);

/* Wait inside a region until all its threads are here. */
void mtp_pool_wait(mtp_pool *pool);

/* In which order the threads of later regions run; for tests. In turns each thread does all of its
 * work up to the next barrier before another one begins, so that a barrier that is missing shows
 * in one of the two orders, whatever the machine. Returns the order used before. */
enum { MTP_TOGETHER, MTP_FIRST_TO_LAST, MTP_LAST_TO_FIRST };
int mtp_pool_order(int order);

#endif
