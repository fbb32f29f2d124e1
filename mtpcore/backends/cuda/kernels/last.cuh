/* Work that needs what several CTAs of a launch make, done by the one of them that ends last.
 *
 * Each group of CTAs has a counter, which is zero before the launch and after it: graphs launch a
 * kernel again and again. What other CTAs have written is read through pointers of which the kernel
 * does not say __restrict__, or the compiler may read it before they have.
 */

/* Whether all other CTAs of a group have come here: what they have written before is there then. All
 * threads must come. */
static __device__ __forceinline__ bool ends_last(unsigned *counter, unsigned n_ctas)
{
    __shared__ unsigned n_before;
    __syncthreads(); /* all threads have written */
    if (threadIdx.x == 0) {
        /* What was written is for others to see before the CTA is counted, and read after that. */
        __threadfence();
        n_before = atomicInc(counter, n_ctas - 1); /* zero after the last one */
        if (n_before == n_ctas - 1)
            __threadfence();
    }
    __syncthreads();
    return n_before == n_ctas - 1;
}
