/* Sort slots into tiles of at most `width` that use the same matrix of a stack.
 *
 * The matrix of slot s is ids[from[s / n_ranks] ...]: see matrix_of. Slots of a tile ascend; tiles
 * are in the order of their first slots; no atomics, so that a tile is the same in every run.
 * members[n_tiles][width] are slots, -1 behind the last one; matrices[n_tiles] is -1 for a tile that
 * is not needed. `leaders` and `ranks` are scratch of n_slots. Grid: 1. Block: 1024.
 */
#include "early.cuh"

#define THREADS 1024

/* The matrix of a slot: an id for each where there are ids, of the row `rows[slot]` where rows are
 * given, and less `first`, the nearest that there is; else the slots take turns (heads). */
static __device__ __forceinline__ int matrix_of(const int *ids, const int *rows, int stride,
                                                int first, int n_matrices, int slot)
{
    if (!ids)
        return slot % n_matrices;
    const int id = ids[(size_t)(rows ? rows[slot] : slot) * stride] - first;
    return id < 0 ? 0 : id < n_matrices ? id : n_matrices - 1;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    group(const int *__restrict__ ids, const int *__restrict__ rows, int *__restrict__ members,
          int *__restrict__ matrices, int *leaders, int *ranks, int n_slots, int n_tiles, int width,
          int stride, int first, int n_matrices)
{
    let_next_begin();
    for (int slot = threadIdx.x; slot < n_slots; slot += THREADS) {
        const int own = matrix_of(ids, rows, stride, first, n_matrices, slot);
        int leader = slot, rank = 0;
        for (int other = 0; other < slot; other++)
            if (matrix_of(ids, rows, stride, first, n_matrices, other) == own) {
                leader = rank == 0 ? other : leader;
                rank = rank + 1 == width ? 0 : rank + 1;
            }
        leaders[slot] = rank == 0 ? slot : leader;
        ranks[slot] = rank;
    }
    __syncthreads();
    for (int slot = threadIdx.x; slot < n_slots; slot += THREADS) {
        const int leader = leaders[slot];
        int tile = 0, count = 0;
        for (int other = 0; other < n_slots; other++) {
            tile += other < leader && leaders[other] == other;
            count += leaders[other] == leader;
        }
        members[(size_t)tile * width + ranks[slot]] = slot;
        if (slot == leader) {
            matrices[tile] = matrix_of(ids, rows, stride, first, n_matrices, slot);
            for (int i = count; i < width; i++)
                members[(size_t)tile * width + i] = -1;
        }
    }
    int used = 0;
    for (int other = 0; other < n_slots; other++)
        used += leaders[other] == other;
    for (int tile = used + threadIdx.x; tile < n_tiles; tile += THREADS)
        matrices[tile] = -1;
}
