/* States of recurrent layers: slots of a base and a log of rows after it, and how the rows of a
 * sequence go on from them. memory/recurrent.py decides that, and says what is never overwritten.
 *
 * In a slot each layer has a base and a log of MTP_LOG rows, at offsets of its own:
 *   convolution  base float[kernel - 1][channels], oldest row first; log float[MTP_LOG][channels];
 *   delta rule   base float[heads][blocks][k_width][16], a block being 16 columns, the last one
 *                filled up; log float[MTP_LOG][of a row]: k of every key head, v of every head,
 *                the decays of every head, beta of every head. */
#ifndef MTPCORE_STATES_H
#define MTPCORE_STATES_H

#include "plan/plan.h"

/* What memory has decided for the rows of a sequence: the columns of its table. */
enum {
    MTP_READ_SLOT,   /* -1: zeros */
    MTP_READ_BASE,   /* place of its base */
    MTP_OPENED_SLOT, /* -1: none */
    MTP_OPENED_BASE, /* place of its base */
    MTP_BEGIN,       /* places that are reserved: of the first pass over them .. */
    MTP_END,         /* .. to the last one's end */
    MTP_LOGGED,      /* rows in the log of the slot that is read, of the places after its base */
    MTP_STATE_COLUMNS = MTP_LOGGED + MTP_LOG
};

/* How the rows of one sequence in a batch go on. */
typedef struct {
    const char *read;        /* the slot with the state after which they come; NULL: zeros */
    const int32_t *replayed; /* rows of its log that come first; NULL: 0, 1, ... */
    int64_t n_replayed;
    char *opened;          /* the slot that gets a base, or NULL */
    int64_t base_at;       /* before which of the rows that is the state */
    char *log;             /* the slot in which rows are logged .. */
    const int32_t *logged; /* .. as these rows; NULL: .. */
    int64_t first_logged;  /* .. from this one on as 0, 1, ... */
} mtp_passage;

static inline mtp_passage mtp_passage_of(const mtp_run *run, int64_t first_row)
{
    const mtp_states *states = &run->states;
    const int32_t *entry = states->table + run->seq[first_row] * MTP_STATE_COLUMNS;
    const int64_t place = run->place[first_row];
    char *read =
        entry[MTP_READ_SLOT] < 0 ? NULL : states->data + entry[MTP_READ_SLOT] * states->slot_bytes;
    const int64_t n_read = place - entry[MTP_READ_BASE];
    if (entry[MTP_OPENED_SLOT] < 0)
        return (mtp_passage){read, entry + MTP_LOGGED,          n_read, NULL, 0,
                             read, entry + MTP_LOGGED + n_read, 0};
    char *opened = states->data + entry[MTP_OPENED_SLOT] * states->slot_bytes;
    const int64_t before = entry[MTP_OPENED_BASE] - place; /* rows of this batch */
    if (place == entry[MTP_BEGIN])
        return (mtp_passage){read,  entry + MTP_LOGGED, n_read, opened, before, opened, NULL,
                             before};
    return (mtp_passage){opened, NULL, -before, NULL, 0, opened, NULL, before};
}

/* The row of the log that is replayed as number i. */
static inline int64_t mtp_replayed(const mtp_passage *way, int64_t i)
{
    return way->replayed ? way->replayed[i] : i;
}

/* The row of the log in which row i of the sequence is kept; below 0: it is not. */
static inline int64_t mtp_logged(const mtp_passage *way, int64_t i)
{
    return way->logged ? way->logged[i] : i - way->first_logged;
}

#endif
