/* Where the rows of a pass get their tokens and recycled rows from, and which rows they follow, now that
 * it is known which nodes its branches are: pairs for place.cu, parents, and the nodes of the texts that
 * their logits follow. A branch without a node keeps the parent that it has.
 * Grid: rows / 256 rounded up. Block: 256.
 */
#include "pair.cuh"
#include "tree.cuh"

#define THREADS 256

/* A row that stands for a branch; BRANCH_ROW of launch/trees.py. */
struct BranchRow {
    int branch, row;
    int text; /* where its nodes go; -1: nowhere */
    int depth;
};

extern "C" __global__ void __launch_bounds__(THREADS)
    follow_branches(const BranchRow *__restrict__ rows_of_branches,
                    const int *__restrict__ branches, const int *__restrict__ makers,
                    const int *__restrict__ outputs, const int *__restrict__ row_of,
                    Pair *__restrict__ tokens, Pair *__restrict__ rows, int *__restrict__ parents,
                    int *__restrict__ texts, int n, int n_words, int word)
{
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= n)
        return;
    const BranchRow own = rows_of_branches[i];
    int node = branches[own.branch];
    tokens[i] = Pair{(node < 0 ? 0 : node) * n_words + word, own.row};
    rows[i] = Pair{node < 0 ? 0 : outputs[makers[node]], own.row};
    if (node < 0)
        return;
    parents[own.row] = row_of[makers[node]];
    for (int at = own.depth - 1; own.text >= 0 && at >= 0; at--) {
        texts[own.text + at] = node;
        node = branches[makers[node]];
    }
}
