/* Packing mapped matrices while they are in use.
 *
 * Plans may run as soon as their weights are mapped. Between their runs groups are packed into
 * memory of their own, and from then on read there. A group is mapped, being packed by one thread,
 * or packed; whoever multiplies takes what it finds, and both give the same bits. So plans that
 * share a matrix need not wait for each other, and a run or a packing that ends early leaves nothing
 * to undo.
 */
#ifndef MTPCORE_PACKING_H
#define MTPCORE_PACKING_H

#include "core/interrupt.h"
#include "core/pool.h"
#include "matmul/matmul.h"

/* A mapped matrix and the memory for its groups. `offset` is where in a mapped file
 * its rows begin, whose pages are given back to the system as they are packed; below 0:
 * they lie in no file. NULL if there is no memory. */
mtp_packing *mtp_packing_new(const mtp_matrix *mapped, void *packed, int64_t offset);
void mtp_packing_free(mtp_packing *self);

/* How many groups are not packed yet. */
int64_t mtp_packing_left(const mtp_packing *self);

/* Whether all are; no run that begins later reads the mapped rows. */
int mtp_packing_is_over(const mtp_packing *self);

/* Where the group that begins with a row is packed; NULL where it is not yet. */
const void *mtp_packing_group(const mtp_packing *self, int64_t row);

/* Matrices in the order in which they are packed, and how far that is. */
typedef struct {
    mtp_packing **packings;
    int64_t *first_pieces; /* [n + 1] pieces of the matrices before; a piece is packed at once */
    int64_t n;
    _Atomic int64_t next; /* piece */
} mtp_packing_queue;

/* NULL if there is no memory. */
mtp_packing_queue *mtp_packing_queue_new(mtp_packing *const *packings, int64_t n);
void mtp_packing_queue_free(mtp_packing_queue *self);

/* Pack the next pieces on all threads of a pool (NULL: on the caller), each thread one at least,
 * until the queue ends, or so many nanoseconds are over, or it is interrupted. Groups that another
 * queue's threads are packing are left to them. */
void mtp_packing_queue_run(mtp_packing_queue *self, mtp_pool *pool, int64_t ns,
                           mtp_interrupt *interrupt);

#endif
