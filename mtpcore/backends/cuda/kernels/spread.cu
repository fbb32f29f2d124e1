/* Copies the parts of what a run brings from the host to where kernels read them. Each part begins with
 * a line of a table: where it goes, where it begins in the block, and how long it is.
 * Grid: parts. Block: 256.
 */
#define THREADS 256

/* One part; LINE of launch/passes.py. */
struct Part {
    unsigned *to;
    int from, n_words; /* of four bytes, counted from the table's beginning */
};

extern "C" __global__ void __launch_bounds__(THREADS)
    spread(const unsigned *__restrict__ block, int table)
{
    const Part part = ((const Part *)(block + table))[blockIdx.x];
    for (int i = threadIdx.x; i < part.n_words; i += THREADS)
        part.to[i] = block[table + part.from + i];
}
