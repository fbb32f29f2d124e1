/* The drafts in the texts of outputs, now that it is known which these are: on the way to a draft, which
 * comes last. Grid: paths / 256 rounded up. Block: 256.
 */
#include "node.cuh"

#define THREADS 256

/* The n drafts on the way to one, among `numbers` from `begin` on; PATH of launch/trees.py. */
struct Path {
    int draft, begin, n;
};

extern "C" __global__ void __launch_bounds__(THREADS)
    write_paths(const Path *__restrict__ paths, const Node *__restrict__ nodes,
                int *__restrict__ numbers, int n)
{
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= n)
        return;
    const Path path = paths[i];
    int draft = path.draft;
    for (int at = path.n - 1; at >= 0 && draft >= 0; at--) {
        numbers[path.begin + at] = draft;
        draft = nodes[draft].parent;
    }
}
