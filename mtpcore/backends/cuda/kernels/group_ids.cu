/* groups[i] = ids[i] / n_of_group: the groups of experts, which lie one after the other.
 * Grid: ids / 256 rounded up. Block: 256.
 */
#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS)
    group_ids(const int *__restrict__ ids, int *__restrict__ groups, long long n, int n_of_group)
{
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i < n)
        groups[i] = ids[i] / n_of_group;
}
