#include "core/pace.h"

/* The first runs fetch code and weights into the caches: they say nothing of the pace. */
enum { FIRST_RUNS = 8, FEWEST_RUNS = 16, MOST_RUNS = 1024 };

/* Part of the time that may be lost by trying the slower way. */
static const double TRIALS = 0.005;

static mtp_way faster_way(const mtp_paces *paces)
{
    const int is_known = paces->pace[MTP_ALONE] > 0.0;
    return is_known && paces->pace[MTP_ALONE] < paces->pace[MTP_SHARED] ? MTP_ALONE : MTP_SHARED;
}

mtp_way mtp_next_way(const mtp_paces *paces)
{
    const mtp_way faster = faster_way(paces);
    if (paces->n_runs < FIRST_RUNS || paces->n_left > 0)
        return faster;
    return faster == MTP_SHARED ? MTP_ALONE : MTP_SHARED;
}

/* Runs until the slower way is tried again: trying it loses a part of the time of these. One slow
 * run may have made it the slower one, so the first trials follow soon. */
static int64_t runs_between(double fast, double slow, int64_t before)
{
    const double n_runs = (slow / fast - 1.0) / TRIALS;
    const int64_t most = 2 * before < MOST_RUNS ? 2 * before : MOST_RUNS;
    if (n_runs < FEWEST_RUNS || before == 0)
        return FEWEST_RUNS;
    return n_runs > (double)most ? most : (int64_t)n_runs;
}

void mtp_note_pace(mtp_paces *paces, mtp_way way, double pace)
{
    const int is_warm = paces->n_runs >= FIRST_RUNS, is_trial = is_warm && paces->n_left == 0;
    const mtp_way before = faster_way(paces);
    double *known = &paces->pace[way];
    *known = is_trial || !is_warm ? pace : 0.75 * *known + 0.25 * pace;
    paces->n_runs++;
    const mtp_way faster = faster_way(paces);
    const double fast = paces->pace[faster], slow = paces->pace[1 - faster];
    if (is_trial || faster != before) {
        const int64_t n = runs_between(fast, slow, paces->n_between);
        paces->n_left = paces->n_between = faster != before ? FEWEST_RUNS : n;
    } else if (is_warm) {
        paces->n_left--;
    }
}
