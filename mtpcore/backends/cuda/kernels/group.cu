/* Sort slots into tiles of at most `width` that use the same matrix of a stack.
 *
 * Tiles are in the order of their matrices, and the slots of a matrix ascend through its tiles.
 * members[n_tiles][width] are slots, -1 after the last one of a matrix; matrices[n_tiles] is -1 for
 * a tile that is not needed.
 *
 * Each warp counts the slots of each matrix in a part of all slots; then tiles are counted out to the
 * matrices, and in them places to the warps' parts; and each warp goes through its part again. Of
 * steps there are as many as slots and matrices; the order of threads shows nowhere. There are as
 * many parts as there is room to count for. Grid: 1. Block: 1024.
 */
#include "early.cuh"

#define THREADS 1024
#define WARPS (THREADS / 32)
#define ROOM 8192 /* the most matrices */

/* The matrix of a slot: the id of it, or of the row `rows[slot]` where rows are given, less `first`;
 * the nearest that there is. */
static __device__ __forceinline__ int matrix_of(const int *ids, const int *rows, int stride,
                                                int first, int n_matrices, int slot)
{
    const int id = ids[(size_t)(rows ? rows[slot] : slot) * stride] - first;
    return id < 0 ? 0 : id < n_matrices ? id : n_matrices - 1;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    group(const int *__restrict__ ids, const int *__restrict__ rows, int *__restrict__ members,
          int *__restrict__ matrices, int n_slots, int n_tiles, int width, int stride, int first,
          int n_matrices)
{
    __shared__ int counts[ROOM]; /* by part and matrix; later where the next slot goes */
    __shared__ int totals[WARPS];
    let_next_begin();
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int fitting = ROOM / n_matrices, most = fitting < WARPS ? fitting : WARPS;
    const int of_part = 32 * ((n_slots + 32 * most - 1) / (32 * most));
    const int n_parts = (n_slots + of_part - 1) / of_part;
    const int begin = warp * of_part;
    const int end = begin + of_part < n_slots ? begin + of_part : n_slots;
    int *own = counts + warp * n_matrices; /* of a warp that has a part */

    for (int i = threadIdx.x; i < n_parts * n_matrices; i += THREADS)
        counts[i] = 0;
    __syncthreads();
    for (int slot = begin + lane; slot < end; slot += 32)
        atomicAdd(&own[matrix_of(ids, rows, stride, first, n_matrices, slot)], 1);
    __syncthreads();

    int n_used = 0;
    for (int before = 0; before < n_matrices; before += THREADS) {
        const int matrix = before + threadIdx.x;
        int n = 0;
        if (matrix < n_matrices)
            for (int part = 0; part < n_parts; part++)
                n += counts[part * n_matrices + matrix];
        const int n_own = (n + width - 1) / width;
        int tile = 0, of_warp = n_own; /* tiles of lanes before, and of all */
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_xor_sync(0xffffffffu, of_warp, step);
            tile += lane & step ? other : 0;
            of_warp += other;
        }
        totals[warp] = of_warp;
        __syncthreads();
        tile += n_used;
        for (int other = 0; other < WARPS; other++) {
            tile += other < warp ? totals[other] : 0;
            n_used += totals[other];
        }
        __syncthreads();
        if (n == 0)
            continue;
        for (int i = 0; i < n_own; i++)
            matrices[tile + i] = matrix;
        int next = tile * width;
        for (int i = n; i < n_own * width; i++)
            members[next + i] = -1;
        for (int part = 0; part < n_parts; part++) {
            const int n_of_part = counts[part * n_matrices + matrix];
            counts[part * n_matrices + matrix] = next;
            next += n_of_part;
        }
    }
    for (int tile = n_used + threadIdx.x; tile < n_tiles; tile += THREADS)
        matrices[tile] = -1;
    __syncthreads();

    for (int from = begin; from < end; from += 32) {
        const int slot = from + lane;
        const int matrix = slot < end ? matrix_of(ids, rows, stride, first, n_matrices, slot) : -1;
        const unsigned alike = __match_any_sync(0xffffffffu, matrix);
        const int rank = __popc(alike & ((1u << lane) - 1));
        const int next = matrix < 0 ? 0 : own[matrix];
        __syncwarp(); /* all lanes have read it */
        if (matrix >= 0) {
            members[next + rank] = slot;
            if (rank == 0)
                own[matrix] = next + __popc(alike);
        }
        __syncwarp();
    }
}
