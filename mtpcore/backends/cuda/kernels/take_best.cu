/* Drafts become the best of their candidates, by their worth, of equal ones the first: those that there
 * are, or that a pass can read. Each candidate counts those that are better, so that all find their
 * places at once. Grid: selections. Block: 256.
 */
#include "draft.cuh"
#include "node.cuh"

#define THREADS 256

/* Drafts that are the best of others, `listed` from `begin` on: first the candidates; SELECTION of
 * launch/trees.py. */
struct Selection {
    int begin, n_candidates, n_drafts, goes_on;
};

extern "C" __global__ void __launch_bounds__(THREADS)
    take_best(const Selection *__restrict__ selections, const int *__restrict__ listed,
              Draft *drafts, Node *nodes, int n_tokens)
{
    const Selection own = selections[blockIdx.x];
    const int *candidates = listed + own.begin, *best = candidates + own.n_candidates;
    const auto may_be = [&](int i) {
        const int token = drafts[candidates[i]].token;
        return token >= 0 && (!own.goes_on || token < n_tokens);
    };
    for (int i = threadIdx.x; i < own.n_candidates; i += THREADS) {
        if (!may_be(i))
            continue;
        Node node = nodes[candidates[i]];
        int place = 0;
        for (int j = 0; j < own.n_candidates; j++) {
            const double other = nodes[candidates[j]].worth;
            place += may_be(j) && (other > node.worth || (other == node.worth && j < i));
        }
        if (place >= own.n_drafts)
            continue;
        node.best_of = candidates[i];
        nodes[best[place]] = node;
        drafts[best[place]] = drafts[candidates[i]];
    }
}
