/* What operations take for granted of matrices, of memory and of each other, when a plan is
 * made. */
#ifndef MTPCORE_PLAN_CHECK_H
#define MTPCORE_PLAN_CHECK_H

#include "plan/plan.h"

typedef struct {
    const int64_t *bytes;     /* [n_buffers] at the largest batch */
    const mtp_memory *memory; /* by group; only their stores are looked at */
    int64_t n_batch, n_vocab, n_groups, slot_bytes;
} mtp_bounds;

/* NULL where operation `at`, run after those that it reads, stays inside of what it is given,
 * whatever the rows hold: ids, places and numbers; else what it does not fit. Its views lie in
 * their buffers. */
const char *mtp_plan_misfit(const mtp_plan *plan, int64_t at, const mtp_bounds *bounds);

#endif
