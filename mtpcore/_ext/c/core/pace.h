/* Whether work goes faster on all threads of a pool, or on the caller alone.
 *
 * All threads are faster until another program takes a core. Then each barrier waits for the
 * scheduler, which may take a hundred times as long as the work between two of them. So the newest
 * pace of both ways decides, and the slower one is tried now and then. Results do not depend on it.
 */
#ifndef MTPCORE_PACE_H
#define MTPCORE_PACE_H

#include <stdint.h>

typedef enum { MTP_SHARED, MTP_ALONE } mtp_way;

/* All zeros to begin with. */
typedef struct {
    double pace[2];    /* nanoseconds for one of estimated work, lately; 0: was not tried yet */
    int64_t n_between; /* runs between the last trial of the slower way and the next one */
    int64_t n_left;    /* of these */
    int64_t n_runs;    /* so far */
} mtp_paces;

/* The way of the next run. */
mtp_way mtp_next_way(const mtp_paces *paces);

/* Note how long that run took, for each of the nanoseconds that it was estimated to take. */
void mtp_note_pace(mtp_paces *paces, mtp_way way, double pace);

#endif
