/* Which results a CTA makes: a tile of the slots, the results of a product.
 *
 * Where slots choose among the matrices of a stack (of experts, positions or clusters), group.cu
 * sorts them into tiles of one matrix each. Else slots take `n_turns` matrices in turn, and so do
 * tiles: one matrix, and slots are the rows, in order; or each row has a slot for each head.
 * `n_ranks` consecutive slots read the same row of x. A launch makes tiles from `from_tile` on.
 */
struct Slots {
    const int *members; /* of group.cu, or null */
    int n, n_turns, n_ranks;
    int first; /* slot of the tile, or where its members begin */

    /* Slot i of the tile, or -1. */
    __device__ __forceinline__ int slot(int i) const
    {
        const int turn = first + i * n_turns;
        return members ? members[first + i] : turn < n ? turn : -1;
    }

    /* The row of x that it reads; of a slot that is missing the first one. */
    __device__ __forceinline__ unsigned row(int i) const
    {
        const int at = slot(i);
        return at < 0 ? 0 : n_ranks == 1 ? at : at / n_ranks;
    }
};

/* The matrix of a tile whose slots take turns. */
__device__ __forceinline__ int turn_of(int tile, int n_turns)
{
    return n_turns == 1 ? 0 : tile % n_turns;
}

/* The slots of a tile of `width`. */
__device__ __forceinline__ Slots slots_of(const int *members, int tile, int width, int n,
                                          int n_turns, int n_ranks)
{
    const int turn = turn_of(tile, n_turns);
    const int first = n_turns == 1 ? tile * width : tile / n_turns * width * n_turns + turn;
    return {members, n, n_turns, n_ranks, first};
}
