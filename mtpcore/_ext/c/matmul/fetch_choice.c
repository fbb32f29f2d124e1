#include "matmul/fetch_choice.h"

#include <stdatomic.h>
#include <stddef.h>

#include "core/clock.h"

static const int64_t most_rows[MTP_FETCH_CLASSES] = {1, 4, 8, 16};

int mtp_fetch_class(int64_t n_rows)
{
    for (int i = 0; i < MTP_FETCH_CLASSES; i++)
        if (n_rows <= most_rows[i])
            return i;
    return -1;
}

/* Each number is written and read as a whole. A reader may meet numbers of two trials: both hold. */
static struct {
    _Atomic int n_trials, way;
    _Atomic float speeds[MTP_FETCH_WAYS];
} remembered[MTP_TYPES][MTP_FETCH_CLASSES];

int mtp_fetch_recall(int32_t type, int32_t rows, mtp_fetch_result *result)
{
    if (atomic_load(&remembered[type][rows].n_trials) == 0)
        return 0;
    result->way = atomic_load(&remembered[type][rows].way);
    for (int way = 0; way < MTP_FETCH_WAYS; way++)
        result->speeds[way] = atomic_load(&remembered[type][rows].speeds[way]);
    return 1;
}

void mtp_fetch_remember(int32_t type, int32_t rows, const mtp_fetch_result *result)
{
    for (int way = 0; way < MTP_FETCH_WAYS; way++)
        atomic_store(&remembered[type][rows].speeds[way], (float)result->speeds[way]);
    atomic_store(&remembered[type][rows].way, result->way);
    atomic_store(&remembered[type][rows].n_trials, 1);
}

void mtp_fetch_forget(void)
{
    for (int type = 0; type < MTP_TYPES; type++)
        for (int rows = 0; rows < MTP_FETCH_CLASSES; rows++)
            atomic_store(&remembered[type][rows].n_trials, 0);
}

enum { PASSES_OF_A_TRIAL = MTP_FETCH_WAYS * MTP_FETCH_TRIALS };

mtp_fetch_choice mtp_fetch_choice_new(int32_t type, int32_t rows)
{
    mtp_fetch_choice choice = {.type = type, .rows = rows, .n_wait = MTP_FETCH_SOON};
    choice.known.way = mtp_fetch_default();
    choice.is_known = mtp_fetch_recall(type, rows, &choice.known);
    choice.n_passes = choice.is_known ? PASSES_OF_A_TRIAL : 0;
    return choice;
}

static double median(const double *values)
{
    double sorted[MTP_FETCH_TRIALS];
    for (int n = 0; n < MTP_FETCH_TRIALS; n++) {
        int at = n;
        for (; at > 0 && sorted[at - 1] > values[n]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = values[n];
    }
    return sorted[MTP_FETCH_TRIALS / 2];
}

/* Add the speeds of a trial to what is known, and choose. */
static void learn(mtp_fetch_choice *choice)
{
    double *known = choice->known.speeds;
    int fastest = 0;
    for (int way = 0; way < MTP_FETCH_WAYS; way++) {
        const double speed = median(choice->speeds[way]);
        known[way] = choice->is_known ? (known[way] + speed) / 2 : speed;
        if (known[way] > known[fastest])
            fastest = way;
    }
    if (known[fastest] > (1 + MTP_FETCH_MARGIN) * known[choice->known.way])
        choice->known.way = fastest;
    choice->is_known = 1;
}

int mtp_fetch_choice_next(mtp_fetch_choice *choice, int fetch, mtp_fetch_result *result)
{
    int has_ended = 0;
    if (choice->is_timed && choice->ns > 0) {
        const int trial = choice->n_passes / MTP_FETCH_WAYS;
        choice->speeds[choice->way][trial] = choice->n_bytes / choice->ns;
        has_ended = ++choice->n_passes == PASSES_OF_A_TRIAL;
    } else if (choice->is_used && choice->n_passes >= PASSES_OF_A_TRIAL) {
        if (++choice->n_passes == choice->n_wait) {
            choice->n_passes = 0;
            if (choice->n_wait < MTP_FETCH_PASSES)
                choice->n_wait *= 2;
        }
    }
    if (has_ended) {
        learn(choice);
        *result = choice->known;
    }
    choice->n_bytes = choice->ns = 0;
    choice->is_used = 0;
    choice->is_timed = fetch == MTP_FETCH_AUTO && choice->n_passes < PASSES_OF_A_TRIAL;
    choice->way = fetch != MTP_FETCH_AUTO ? fetch
                  : choice->is_timed      ? choice->n_passes % MTP_FETCH_WAYS
                                          : choice->known.way;
    return has_ended;
}

/* Only the first thread writes to a choice; the others read its way, which stays during a pass. */
mtp_fetch_watch mtp_fetch_begin(mtp_fetch_choice *choices, int64_t n_rows, int thread)
{
    const int rows = mtp_fetch_class(n_rows);
    if (rows < 0)
        return (mtp_fetch_watch){mtp_fetch_default(), 0, NULL};
    mtp_fetch_choice *choice = &choices[rows];
    if (thread == 0 && !choice->is_used)
        choice->is_used = 1;
    if (thread > 0 || !choice->is_timed)
        return (mtp_fetch_watch){choice->way, 0, NULL};
    return (mtp_fetch_watch){choice->way, mtp_now_ns(), choice};
}

void mtp_fetch_end(const mtp_fetch_watch *watch, const mtp_matrix *w, int64_t n_rows, int n_threads)
{
    if (watch->timed == NULL)
        return;
    watch->timed->ns += (double)(mtp_now_ns() - watch->begin_ns);
    watch->timed->n_bytes += (double)mtp_packed_bytes(w->type, n_rows, w->n_cols) * n_threads;
}
