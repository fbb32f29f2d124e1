/* The best n nodes of each list, by their worth, of equal ones the first; those that may be run alone,
 * or all that there are. They come best first, or in the order of the list. Places that are left have
 * NO_NODE.
 *
 * Each node counts those that are better, so that all find their places at once.
 * Grid: lists. Block: 256.
 */
#include "draft.cuh"
#include "tree.cuh"

#define THREADS 256

/* A list of nodes, and where the best of them go; SELECTION of launch/trees.py. */
struct Selection {
    int begin, n_listed; /* in `listed` */
    int first, n;        /* in `chosen` */
};

extern "C" __global__ void __launch_bounds__(THREADS)
    select_best(const Selection *__restrict__ selections, const int *__restrict__ listed,
                const Draft *__restrict__ nodes, const double *__restrict__ worths, int *places,
                int *__restrict__ chosen, int is_to_run)
{
    const Selection own = selections[blockIdx.x];
    const int *list = listed + own.begin;
    int *placed = places + own.begin;
    const auto may_be = [&](int i) {
        return is_to_run ? nodes[list[i]].goes_on == 1 : nodes[list[i]].token != NO_NODE;
    };
    for (int i = threadIdx.x; i < own.n; i += THREADS)
        chosen[own.first + i] = NO_NODE;
    for (int i = threadIdx.x; i < own.n_listed; i += THREADS) {
        int n_better = 0;
        const double worth = worths[list[i]];
        for (int j = 0; j < own.n_listed; j++) {
            const double other = worths[list[j]];
            n_better += may_be(j) && (other > worth || (other == worth && j < i));
        }
        placed[i] = may_be(i) && n_better < own.n ? n_better : NO_NODE;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < own.n_listed; i += THREADS) {
        int place = placed[i];
        if (place == NO_NODE)
            continue;
        if (is_to_run) {
            place = 0;
            for (int j = 0; j < i; j++)
                place += placed[j] != NO_NODE;
        }
        chosen[own.first + place] = list[i];
    }
}
