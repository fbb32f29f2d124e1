/* What becomes of the tokens that a pass ranked: each is a draft if there is one, if the draft before it
 * goes on, and if it is probable enough; and it goes on if the token has an embedding, and the row that
 * is read for what comes after it is finite. A condition, where there is one, is set if any goes on that
 * is to. Grid: 1. Block: 256.
 */
#include "condition.cuh"
#include "draft.cuh"
#include "node.cuh"
#include "ranked.cuh"

#define THREADS 256

/* A draft that a pass may choose; CHILD of launch/trees.py. */
struct Child {
    double p_min;
    int draft, before; /* before: below 0 after the pending token */
    int ranking, rank; /* which token it is */
    int kept;          /* the row that is to be finite */
    int is_to_go_on;
};

extern "C" __global__ void __launch_bounds__(THREADS)
    grow(const Ranked *__restrict__ rankings, const Child *__restrict__ children,
         const int *__restrict__ marks, Draft *__restrict__ drafts, Node *__restrict__ nodes, int n,
         int n_ranks, int n_marks, int n_marked, int n_tokens, int n_readable,
         unsigned long long condition)
{
    __shared__ int any;
    if (threadIdx.x == 0)
        any = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += THREADS) {
        const Child child = children[i];
        const Ranked one = rankings[child.ranking * n_ranks + child.rank];
        bool is_finite = true;
        for (int mark = 0; mark < n_marks; mark++)
            is_finite = is_finite && !marks[mark * n_marked + child.kept];
        const bool follows = child.before < 0 || drafts[child.before].goes_on;
        if (!follows || one.token < 0 || (double)one.probability < child.p_min)
            continue;
        const bool goes_on = is_finite && one.token < n_tokens;
        drafts[child.draft] = Draft{one.token, one.token < n_readable ? one.token : 0, goes_on};
        nodes[child.draft].worth = (child.before < 0 ? 1.0 : nodes[child.before].worth) * one.share;
        nodes[child.draft].kept = child.kept;
        if (goes_on && child.is_to_go_on)
            any = 1; /* all that write, write the same */
    }
    __syncthreads();
    if (threadIdx.x == 0 && condition && any)
        cudaGraphSetConditional(condition, 1);
}
