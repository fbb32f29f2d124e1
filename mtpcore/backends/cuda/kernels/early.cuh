/* A launch may begin before the one before it has ended, where it is asked for and the architecture
 * has that. Until wait_for_launches() returns, it must read nothing that launches have written, and
 * write nothing; weights may be fetched. Launches that were waited for, were so for all later ones.
 *
 * What launches have written is no `const *__restrict__` of a kernel that waits: that promises values
 * which never change while it runs, and the compiler may read those before it waits.
 */
#ifndef MTPCORE_EMULATED
__device__ __forceinline__ void wait_for_launches()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The next launch may begin, if it asked for that. */
__device__ __forceinline__ void let_next_begin()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* Asks for the line of memory that a byte is in. */
__device__ __forceinline__ void prefetch(const void *byte)
{
    asm volatile("prefetch.L2 [%0];" ::"l"(byte));
}
#endif

/* Asks for n bytes, all threads of a CTA of 256 together. */
__device__ __forceinline__ void prefetch_all(const void *bytes, size_t n)
{
    for (size_t i = threadIdx.x * 128; i < n; i += 256 * 128)
        prefetch((const char *)bytes + i);
}
