/* What becomes of the tokens that a pass ranked: each is a node of its tree where the node above it was
 * run, and where it is probable enough. It goes on if its token has an embedding and the rows that it is
 * run with are finite. A condition, where there is one, says whether any goes on that is to.
 *
 * `branches` has the node that each branch is, which gets children here; the worth of a node is the
 * product of the shares on its way.
 * Grid: 1. Block: 256.
 */
#include "condition.cuh"
#include "draft.cuh"
#include "ranked.cuh"
#include "tree.cuh"

#define THREADS 256

/* A node that may grow in this pass; CHILD of launch/trees.py. */
struct Child {
    double p_min;
    int branch; /* that it grows from */
    int output, rank;
    int is_to_go_on;
};

extern "C" __global__ void __launch_bounds__(THREADS)
    grow(const Ranked *__restrict__ ranking, const Child *__restrict__ children,
         const int *__restrict__ branches, const int *__restrict__ marks, Draft *__restrict__ nodes,
         double *__restrict__ worths, int first, int n, int n_ranks, int n_outputs, int n_marks,
         int n_tokens, int n_readable, unsigned long long condition)
{
    __shared__ int any;
    if (threadIdx.x == 0)
        any = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += THREADS) {
        const Child child = children[i];
        const Ranked one = ranking[child.output * n_ranks + child.rank];
        const int above = branches[child.branch];
        const bool is_there = (above == PENDING || (above >= 0 && nodes[above].goes_on == 1)) &&
                              one.token >= 0 && !((double)one.probability < child.p_min);
        bool is_finite = true;
        for (int mark = 0; mark < n_marks; mark++)
            is_finite = is_finite && !marks[mark * n_outputs + child.output];
        Draft node = {NO_NODE, 0, 0};
        if (is_there) {
            node.token = one.token;
            node.next = one.token < n_readable ? one.token : 0;
            node.goes_on = is_finite ? one.token < n_tokens : NOT_FINITE;
        }
        nodes[first + i] = node;
        worths[first + i] = (above >= 0 ? worths[above] : 1.0) * one.share;
        if (node.goes_on == 1 && child.is_to_go_on)
            any = 1; /* all that write, write the same */
    }
    __syncthreads();
    if (threadIdx.x == 0 && condition)
        cudaGraphSetConditional(condition, (unsigned)any);
}
