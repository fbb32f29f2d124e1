/* Rows of a pass get what they wait for: tokens of drafts, and kept rows, which `place` brings to slots.
 * A row is dead if its draft is none or cannot be read, if its kept row was not made or is not finite, or
 * if a row before it is dead. In a tree a row comes after the row of the draft before its own, where
 * there is one in the pass: all that may be are as deep. Grid: 1. Block: 256.
 */
#include "draft.cuh"
#include "marks.cuh"
#include "node.cuh"
#include "pair.cuh"

#define THREADS 256
#define OF_DRAFT -2

/* A row, what it gets, and the fill that comes before it; FILL of launch/passes.py. */
struct Fill {
    int row;
    int draft;  /* whose token; below 0: the row has one */
    int kept;   /* which row feeds its slots; OF_DRAFT: the one that chose the draft; -1: none */
    int above;  /* of a row before it, as the batch says; -1: none */
    int parent; /* in a tree a row as deep as the one that it comes after, or that one */
};

/* Whether a fill cannot be had, and which one comes before it. */
struct Found {
    int is_amiss, above;
};

extern "C" __global__ void __launch_bounds__(THREADS)
    fill(const Fill *__restrict__ fills, const Draft *__restrict__ drafts,
         const Node *__restrict__ nodes, const int *__restrict__ fill_of,
         const int *__restrict__ made, const int *__restrict__ marks, Found *found,
         int *__restrict__ is_dead, Pair *__restrict__ rows, int *__restrict__ tokens,
         int *__restrict__ parents, int n, int n_marks, int n_marked, int kinds, int n_tokens,
         int n_readable)
{
    const Marks kept_rows = {marks, n_marks, n_marked, kinds};
    for (int i = threadIdx.x; i < n; i += THREADS) {
        const Fill own = fills[i];
        const int kept = own.kept == OF_DRAFT ? nodes[own.draft].kept : own.kept;
        int above = own.above, parent = own.parent;
        bool is_amiss = kept >= 0 && !(made[kept] && kept_rows.is_finite(kept));
        if (own.draft >= 0) {
            const int token = drafts[own.draft].token, before = nodes[own.draft].parent;
            is_amiss = is_amiss || token < 0 || token >= n_tokens;
            if (tokens)
                tokens[own.row] = token >= 0 && token < n_readable ? token : 0;
            if (fill_of && before >= 0 && fill_of[before] >= 0) {
                above = fill_of[before];
                parent = fills[above].row;
            }
        }
        found[i] = Found{is_amiss, above};
        if (rows)
            rows[i] = Pair{kept, own.row};
        if (fill_of)
            parents[own.row] = parent;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += THREADS) {
        int any = 0;
        for (int at = i; at >= 0; at = found[at].above)
            any |= found[at].is_amiss;
        is_dead[i] = any;
    }
}
