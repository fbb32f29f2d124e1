/* Copies from memory to shared memory that run beside the thread: sixteen bytes each, or four, in
 * groups.
 *
 * What a thread copies is there for it after it waited for the group, and for its warp after
 * __syncwarp. The emulated device has these functions of its own.
 */
#ifndef MTPCORE_EMULATED
__device__ __forceinline__ void copy_later(void *to, const void *from)
{
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(to)),
        "l"(from)
        : "memory");
}

__device__ __forceinline__ void copy_word_later(void *to, const void *from)
{
    asm volatile(
        "cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((unsigned)__cvta_generic_to_shared(to)),
        "l"(from)
        : "memory");
}

/* Ends a group; one may be empty. */
__device__ __forceinline__ void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* Waits for all groups of this thread but the N newest. */
template <int N> __device__ __forceinline__ void wait_for_groups()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
#endif
