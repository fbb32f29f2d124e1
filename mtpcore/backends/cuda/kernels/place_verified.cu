/* The rows that verify chosen nodes: where each gets its token from, which row it follows, its position,
 * the index of the token that it chooses, and the nodes of its text, which end with its own; before them
 * is a node that is none. A row without a node stays as it is.
 * Grid: rows / 256 rounded up. Block: 256.
 */
#include "noise.cuh"
#include "verified_row.cuh"
#include "pair.cuh"
#include "tree.cuh"

#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS)
    place_verified(const VerifiedRow *__restrict__ verified, const int *__restrict__ branches,
                   const int *__restrict__ makers, Pair *__restrict__ tokens,
                   int *__restrict__ depths, int *__restrict__ parents, int *positions,
                   Chooser *choosers, int *__restrict__ texts, int n, int n_axes, int most,
                   int n_words, int word, int nobody)
{
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= n)
        return;
    const VerifiedRow own = verified[i];
    const int node = branches[own.first + own.row - own.root - 1];
    tokens[i] = Pair{(node < 0 ? 0 : node) * n_words + word, own.row};
    depths[i] = -1;
    for (int at = 0; at < most; at++)
        texts[own.text + at] = nobody;
    if (node < 0)
        return;
    int depth = 0;
    for (int at = node; at >= 0; at = branches[makers[at]]) {
        depth++;
        texts[own.text + most - depth] = at;
    }
    const int above = branches[makers[node]];
    int parent = own.root;
    for (int j = 0; j < own.n; j++)
        if (above >= 0 && branches[own.first + j] == above)
            parent = own.root + 1 + j;
    depths[i] = depth;
    parents[own.row] = parent;
    for (int axis = 0; axis < n_axes; axis++)
        positions[own.row * n_axes + axis] = positions[own.root * n_axes + axis] + depth;
    if (own.chooser >= 0)
        choosers[own.chooser].index = choosers[own.above].index + depth;
}
