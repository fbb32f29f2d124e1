/* Rows of drafts, now that it is known which these are: each comes after the row of the draft before,
 * where there is one in the pass, and gets the row that chose it. Grid: links / 256 rounded up.
 * Block: 256.
 */
#include "node.cuh"
#include "pair.cuh"

#define THREADS 256

/* A draft, and its row of a pass; LINK of launch/trees.py. */
struct Link {
    int draft, row;
};

extern "C" __global__ void __launch_bounds__(THREADS)
    link_rows(const Link *__restrict__ links, const Node *__restrict__ nodes,
              const int *__restrict__ row_of, Pair *__restrict__ rows, int *__restrict__ parents,
              int n)
{
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= n)
        return;
    const Node node = nodes[links[i].draft];
    if (rows)
        rows[i].from = node.kept;
    if (node.parent >= 0 && row_of[node.parent] >= 0)
        parents[links[i].row] = row_of[node.parent];
}
