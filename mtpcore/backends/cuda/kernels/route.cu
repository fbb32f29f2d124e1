/* The experts of each row, and their weights (route.cuh). One warp for one row, scratch of two floats an
 * expert and one a group in shared memory. Grid: rows. Block: 32.
 */
#include "functions.cuh"
#include "route.cuh"

#define MOST_EXPERTS 1024

extern "C" __global__ void __launch_bounds__(32)
    route(const float *__restrict__ logits, const float *__restrict__ correction,
          const float *__restrict__ factors, int *__restrict__ ids, float *__restrict__ shares,
          int n, int n_used, int n_ranks, int normalise, float scale, int n_groups,
          int n_groups_used, int n_best)
{
    __shared__ float gate[MOST_EXPERTS], score[MOST_EXPERTS], worth[MOST_EXPERTS];
    const Choice choice = {correction, factors, n,        n_used,        n_ranks,
                           normalise,  scale,   n_groups, n_groups_used, n_best};
    const size_t row = blockIdx.x;
    route_row(choice, logits + row * n, ids + row * n_ranks, shares + row * n_ranks, gate, score,
              worth);
}
