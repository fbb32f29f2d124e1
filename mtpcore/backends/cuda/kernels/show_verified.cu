/* What rows that verify chosen nodes see: as much as the pending token, and their paths below it.
 * Grid: rows / 256 rounded up. Block: 256.
 */
#include "visible.cuh"
#include "verified_row.cuh"

#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS)
    show_verified(const VerifiedRow *__restrict__ verified, const int *__restrict__ depths,
                  Visible *visible, int n, int window)
{
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= n || depths[i] < 0)
        return;
    const Visible root = visible[verified[i].root];
    Visible own = {root.begin, root.end + depths[i], root.base, root.own + depths[i]};
    if (window > 0 && own.begin < own.end - window)
        own.begin = own.end - window;
    visible[verified[i].row] = own;
}
