/* How the states of recurrent layers go on in a run; backends/cuda/states.py writes it.
 *
 * Whole numbers: of each of `n_seq` sequences its first advance, and how many it has (none where the
 * run has fewer sequences); of each of `n_rows` rows the advance that it is, or NOTHING where the
 * batch has fewer; then the advances, of a sequence in order. A walk begins at a base. For every
 * branch of a draft tree it begins there again and comes down the path, so that each advance goes on
 * from the state that the one before it left.
 */
#define NOTHING (-1)

struct Advance {
    int row;    /* of the batch; ~i: row i of the log, over all slots */
    int slot;   /* of the base at which the walk began; NOTHING: zeros */
    int depth;  /* advances since then */
    int before; /* slot whose base the state before the row becomes, or NOTHING */
    int after;  /* that of the state after it */
    int kept;   /* row of the log, over all slots, as which the row is kept, or NOTHING */
    int wanted; /* whether the row is here for what it makes, and not on the way to another */
};

/* All advances, after the numbers of sequences and rows. */
static __device__ __forceinline__ const Advance *advances_of(const int *walks, int n_seq,
                                                             int n_rows)
{
    return (const Advance *)(walks + 2 * n_seq + n_rows);
}
