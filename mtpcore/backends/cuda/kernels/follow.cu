/* Rows of trees get the drafts that verify them, now that it is known which these are: their tokens, the
 * rows that they follow, positions, what they see, the index of what is chosen after them, and the
 * drafts in the texts before that.
 *
 * A row follows that of the draft before its own, which is an earlier one, or the pending token's. Rows
 * of drafts that are none get something, too, which nobody reads. Drafts are numbers below `n_drafts`;
 * that one stands for none. Grid: 1. Block: 256.
 */
#include "draft.cuh"
#include "node.cuh"
#include "noise.cuh"
#include "visible.cuh"

#define THREADS 256
#define NOTHING (-1)

/* A row that gets a draft; TREE_ROW of launch/trees.py. */
struct TreeRow {
    int row, draft;
    int root;      /* the row of the pending token */
    int chooser;   /* who chooses after the row; NOTHING: nobody */
    int index;     /* of what is chosen after the pending token */
    int begin, room; /* of the drafts in the text before that, among `numbers` */
};

extern "C" __global__ void __launch_bounds__(THREADS)
    follow(const TreeRow *__restrict__ tree_rows, const Draft *__restrict__ drafts,
           const Node *__restrict__ nodes, int *row_of, int *__restrict__ tokens,
           int *__restrict__ parents, int *positions, Visible *visible, Chooser *choosers,
           int *__restrict__ numbers, int n, int n_drafts, int n_axes, int window, int n_readable)
{
    for (int draft = threadIdx.x; draft < n_drafts; draft += THREADS)
        row_of[draft] = NOTHING;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += THREADS)
        row_of[nodes[tree_rows[i].draft].best_of] = i;
    __syncthreads();
    const auto before = [&](int i) {
        const int draft = nodes[tree_rows[i].draft].parent;
        const int found = draft < 0 ? NOTHING : row_of[nodes[draft].best_of];
        return found < i ? found : NOTHING;
    };
    for (int i = threadIdx.x; i < n; i += THREADS) {
        const TreeRow own = tree_rows[i];
        const int token = drafts[own.draft].token, above = before(i);
        int depth = 0;
        for (int at = i; at >= 0; at = before(at))
            depth++;
        if (tokens)
            tokens[own.row] = token >= 0 && token < n_readable ? token : 0;
        parents[own.row] = above < 0 ? own.root : tree_rows[above].row;
        for (int axis = 0; axis < n_axes; axis++)
            positions[own.row * n_axes + axis] = positions[own.root * n_axes + axis] + depth;
        if (visible) {
            const Visible root = visible[own.root];
            const int end = root.end + depth;
            const int begin = window && end - window > root.begin ? end - window : root.begin;
            visible[own.row] = Visible{begin, end, root.base, end - 1};
        }
        if (own.chooser >= 0)
            choosers[own.chooser].index = own.index + depth;
        for (int at = i, to = depth; at >= 0; at = before(at))
            numbers[own.begin + --to] = tree_rows[at].draft;
        for (int to = depth; to < own.room; to++)
            numbers[own.begin + to] = n_drafts;
    }
}
