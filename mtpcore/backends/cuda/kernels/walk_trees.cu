/* How the states of recurrent layers go on along trees, now that it is known which rows theirs follow:
 * walks (advance.cuh) as the host would have written them.
 *
 * Those that it has written, with any parents, say what rows are replayed before a tree, and as what its
 * own are kept; they begin with its first row, which follows none. Walks are written after all that the
 * host may write, where each row of a batch has `room` for advances. A tree has no more rows than a log.
 * Grid: trees. Block: 32.
 */
#include "advance.cuh"

#define THREADS 32

/* Rows of a batch that follow each other; TREE of launch/trees.py. */
struct Tree {
    int sequence; /* among those of the batch */
    int first, n;
};

extern "C" __global__ void __launch_bounds__(THREADS)
    walk_trees(const Tree *__restrict__ trees, const int *__restrict__ parents, int *walks,
               int n_seq, int n_rows, int room)
{
    __shared__ int above[THREADS], length[THREADS];
    const Tree own = trees[blockIdx.x];
    const int i = threadIdx.x;
    int *walk = walks + 2 * own.sequence, *wanted = walks + 2 * n_seq + own.first;
    Advance *advances = (Advance *)advances_of(walks, n_seq, n_rows);
    const Advance *replayed = advances + walk[0];
    const int n_replayed = advances[wanted[0]].depth;
    Advance self = advances[wanted[i < own.n ? i : 0]];

    above[i] = i < own.n ? parents[own.first + i] - own.first : NOTHING;
    __syncthreads();
    int depth = n_replayed;
    for (int row = above[i]; row >= 0; row = above[row])
        depth++;
    length[i] = i > 0 && above[i] == i - 1 ? 1 : depth + 1;
    __syncthreads();
    if (i >= own.n)
        return;
    const int begin = (n_rows + own.first) * room;
    int end = begin;
    for (int row = 0; row <= i; row++)
        end += length[row];
    const int first = end - length[i];
    if (length[i] == depth + 1) {
        for (int at = 0; at < n_replayed; at++)
            advances[first + at] = replayed[at];
        int at = depth - 1;
        for (int row = above[i]; row >= 0; row = above[row], at--)
            advances[first + at] =
                Advance{own.first + row, self.slot, at, NOTHING, NOTHING, NOTHING, 0};
    }
    self.depth = depth;
    advances[end - 1] = self;
    wanted[i] = end - 1;
    if (i == own.n - 1) {
        walk[0] = begin;
        walk[1] = end - begin;
    }
}
