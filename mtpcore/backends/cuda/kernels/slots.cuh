/* Which results a CTA makes: a tile of the slots, the results of a product.
 *
 * Slots of a plain product are its rows, in order. Of a stack by head a row has a slot for each
 * matrix, and these are the grid's third axis: their tiles have a row's every so many slots. Where
 * slots choose among matrices (of experts, positions or clusters), group.cu sorts them into tiles of
 * one matrix each. `n_ranks` consecutive slots read the same row of x.
 */
struct Slots {
    const int *members; /* of group.cu, or null */
    int n, n_ranks;
    int first; /* slot of the tile, or where its members begin */

    /* Slot i of the tile, or -1. */
    __device__ __forceinline__ int slot(int i) const
    {
        const int at = first + i * (int)gridDim.z;
        return members ? members[at] : at < n ? at : -1;
    }

    /* The row of x that it reads; of a slot that is missing the first one. */
    __device__ __forceinline__ unsigned row(int i) const
    {
        const int at = slot(i);
        return at < 0 ? 0 : n_ranks == 1 ? at : at / n_ranks;
    }
};

/* The slots of a tile of `width`. */
__device__ __forceinline__ Slots slots_of(const int *members, int tile, int width, int n,
                                          int n_ranks)
{
    return {members, n, n_ranks, tile * width * (int)gridDim.z + (int)blockIdx.z};
}
