/* How long two threads take to hand a line of memory to each other and back.

   gcc -O2 -pthread -o handover benchmarks/handover.c && ./handover

   The median of a hundred times of a thousand, once a second. Cores that share a cache take a
   fraction of the time of others, and those of a virtual machine may change from one to the other. */

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { TURNS = 1000, TIMES = 100, SECONDS = 10 };

static _Atomic int turn;

static void *hand_back(void *unused) {
    (void)unused;
    for (int i = 0; i < TURNS * TIMES; i++) {
        while (atomic_load(&turn) != 1)
            ;
        atomic_store(&turn, 0);
    }
    return NULL;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(void) {
    for (int second = 0; second < SECONDS; second++) {
        double times[TIMES];
        pthread_t other;
        pthread_create(&other, NULL, hand_back, NULL);
        for (int i = 0; i < TIMES; i++) {
            const double begin = now();
            for (int j = 0; j < TURNS; j++) {
                atomic_store(&turn, 1);
                while (atomic_load(&turn) != 0)
                    ;
            }
            times[i] = (now() - begin) / TURNS;
        }
        pthread_join(other, NULL);
        qsort(times, TIMES, sizeof times[0], compare);
        printf("%.0f ns\n", times[TIMES / 2]);
        fflush(stdout);
        nanosleep(&(struct timespec){1, 0}, NULL);
    }
}
