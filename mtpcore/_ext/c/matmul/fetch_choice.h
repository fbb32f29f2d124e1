/* Which way to prefetch weights is the fastest, measured while a plan runs.
 *
 * A choice is made for each weight type of a plan and each class of numbers of rows. The rule: in a
 * trial the passes that use these weights take turns between the ways until each has had
 * MTP_FETCH_TRIALS, and what counts of each way is its median speed, averaged with what was known of
 * it before. The way in use is left for one that is faster by more than MTP_FETCH_MARGIN. The second
 * trial begins MTP_FETCH_SOON passes after the first, and each later one after twice as many as the
 * one before, at most MTP_FETCH_PASSES: a first trial that other programs disturbed is corrected
 * soon, and in the long run trials cost little. Three quarters of a trial's passes may be slower
 * than the best: where they take three times as long that is 0.5 % of the time in the end.
 *
 * Speed is bytes of weights over the time that a plan's first thread took for its share of them;
 * only trials are timed. What is known is remembered by the process: the plans that are made later
 * begin with it, and with a trial where there is nothing. Numbers of rows above the last class are
 * bound by arithmetic and use the processor's way. No result depends on any of it.
 */
#ifndef MTPCORE_FETCH_CHOICE_H
#define MTPCORE_FETCH_CHOICE_H

#include <stdint.h>

#include "core/cpu.h"
#include "matmul/matmul.h"

enum {
    MTP_FETCH_CLASSES = 4, /* of numbers of rows: 1, 2 to 4, 5 to 8, 9 to 16 */
    MTP_FETCH_TRIALS = 7,
    MTP_FETCH_SOON = 256,
    MTP_FETCH_PASSES = 8192
};

static const double MTP_FETCH_MARGIN = 0.02;

/* What is known: the way to use, and the speed of each in bytes a nanosecond (GB/s). */
typedef struct {
    int way;
    double speeds[MTP_FETCH_WAYS];
} mtp_fetch_result;

typedef struct {
    int32_t type, rows; /* weight type, and class of rows */
    mtp_fetch_result known;
    int is_known;       /* whether a trial has ended, or something was remembered */
    int way;            /* of the pass that runs */
    int is_timed;       /* whether it belongs to a trial */
    int is_used;        /* whether it has multiplied with these weights */
    double n_bytes, ns; /* of the pass that runs: weights, and the first thread's time */
    int n_passes;       /* since the last trial began */
    int n_wait;         /* passes from its beginning to the next one's */
    double speeds[MTP_FETCH_WAYS][MTP_FETCH_TRIALS];
} mtp_fetch_choice;

/* The class of a number of rows; -1 above the last. */
int mtp_fetch_class(int64_t n_rows);

/* Begin with what is remembered, or with a trial; the first pass needs mtp_fetch_choice_next. */
mtp_fetch_choice mtp_fetch_choice_new(int32_t type, int32_t rows);

/* Take in what the last pass measured, and say how the next one prefetches: as `fetch` says (an
 * MTP_FETCH_*), or by the rule where that is MTP_FETCH_AUTO. Returns whether a trial ended, whose
 * result is then in *result. */
int mtp_fetch_choice_next(mtp_fetch_choice *choice, int fetch, mtp_fetch_result *result);

/* What the process remembers of a type and a class; 0 where that is nothing. For any thread. */
int mtp_fetch_recall(int32_t type, int32_t rows, mtp_fetch_result *result);
void mtp_fetch_remember(int32_t type, int32_t rows, const mtp_fetch_result *result);
void mtp_fetch_forget(void); /* for tests */

/* A matmul: how it prefetches, and the choice that it is timed for, if it is. */
typedef struct {
    int way;
    int64_t begin_ns;
    mtp_fetch_choice *timed; /* or NULL */
} mtp_fetch_watch;

/* Begin a matmul of so many rows. `choices` are those of its weight type, by class. */
mtp_fetch_watch mtp_fetch_begin(mtp_fetch_choice *choices, int64_t n_rows, int thread);

/* End it: each of so many threads has multiplied with about as many rows of a packed matrix. */
void mtp_fetch_end(const mtp_fetch_watch *watch, const mtp_matrix *w, int64_t n_rows,
                   int n_threads);

#endif
