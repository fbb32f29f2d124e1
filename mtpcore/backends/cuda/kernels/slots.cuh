/* Which results a CTA makes: tile blockIdx.y of the slots, the results of a product.
 *
 * The slots of a plain product are its rows, in order. Those of a stack of matrices (one of them an
 * expert, a head or a position) are sorted by group.cu into tiles of one matrix each. `n_ranks`
 * consecutive slots read the same row of x.
 */

/* The matrix of this CTA's tile; -1 where there is no such tile. */
__device__ __forceinline__ int matrix_of_tile(const int *matrices)
{
    return matrices ? matrices[blockIdx.y] : 0;
}

/* Slot i of this CTA's tile of `width`, or -1. */
__device__ __forceinline__ int slot_of(const int *members, int n_slots, int width, int i)
{
    const int at = blockIdx.y * width + i;
    return members ? members[at] : at < n_slots ? at : -1;
}

/* The row of x that it reads; of a slot that is missing the first one. */
__device__ __forceinline__ unsigned row_of_slot(const int *members, int n_slots, int n_ranks,
                                                int width, int i)
{
    const int slot = slot_of(members, n_slots, width, i);
    return slot < 0 ? 0 : n_ranks == 1 ? slot : slot / n_ranks;
}
