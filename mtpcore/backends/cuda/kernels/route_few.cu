/* The experts of few rows in one launch: logits (floats.cuh), and by the CTA that ends last their choice
 * (route.cuh), a warp for each row, and slots sorted into tiles by the experts that they use, as group.cu
 * sorts many. Grid: experts / 4. Block: 256.
 */
#include "early.cuh"
#include "float16.cuh"
#include "functions.cuh"
#include "last.cuh"
#include "lanes.cuh"
#include "slots.cuh"
#include "floats.cuh"
#include "route.cuh"

#define ROOM 6400 /* for each row gates and scores, and the worth of groups */

/* Sorts a slot for each thread; of an expert there are no more than a tile takes. `matrix` and `rank`
 * have room for all threads. */
static __device__ __forceinline__ void sort_slots(const int *ids, int n_slots, int width,
                                                  int n_tiles, int *members, int *matrices,
                                                  int *matrix, int *rank)
{
    const int slot = threadIdx.x, own = slot < n_slots ? ids[slot] : 0;
    matrix[slot] = own;
    __syncthreads();
    int before = 0, n_alike = 0; /* slots of the same matrix */
    for (int other = 0; other < n_slots; other++) {
        before += matrix[other] == own && other < slot;
        n_alike += matrix[other] == own;
    }
    rank[slot] = before;
    __syncthreads();
    int tile = 0, n_used = 0;
    for (int other = 0; other < n_slots; other++) {
        tile += rank[other] == 0 && matrix[other] < own;
        n_used += rank[other] == 0;
    }
    if (slot < n_slots)
        members[tile * width + before] = slot;
    if (slot < n_slots && before == 0) {
        matrices[tile] = own;
        for (int i = n_alike; i < width; i++)
            members[tile * width + i] = -1;
    }
    for (int i = n_used + slot; i < n_tiles; i += THREADS)
        matrices[i] = -1;
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    route_few(const Four *__restrict__ weights, const float *x, const float *__restrict__ bias,
              const float *__restrict__ correction, const float *__restrict__ factors,
              float *logits, int *ids, float *shares, int *members, int *matrices,
              unsigned *counters, int n_rows, int n_cols, int n_experts, int n_used, int n_ranks,
              int normalise, float scale, int n_groups, int n_groups_used, int n_best, int width,
              int n_tiles)
{
    __shared__ float room[ROOM];
    __shared__ int matrix[THREADS], rank[THREADS];
    multiply_floats(weights, x, bias, nullptr, nullptr, logits, n_experts, n_cols, n_rows, 1, 0);
    if (!ends_last(counters, gridDim.x))
        return;
    const Choice choice = {correction, factors, n_experts, n_used,        n_ranks,
                           normalise,  scale,   n_groups,  n_groups_used, n_best};
    for (int row = threadIdx.x >> 5; row < n_rows; row += WARPS) {
        float *gate = room + row * (2 * n_experts + n_groups);
        route_row(choice, logits + (size_t)row * n_experts, ids + row * n_ranks,
                  shares + row * n_ranks, gate, gate + n_experts, gate + 2 * n_experts);
    }
    __syncthreads();
    sort_slots(ids, n_rows * n_ranks, width, n_tiles, members, matrices, matrix, rank);
}
