/* Finds the next digit of each row's last key: the largest whose tokens, with all above them, reach
 * top_k or top_p. Leaves the tallies zero. In the first round, they are of the whole row; a row in
 * which nothing ends the prefix is closed. Grid: rows. Block: 256.
 */
#include "cut.cuh"

#define THREADS DIGITS

extern "C" __global__ void __launch_bounds__(THREADS)
    descend(Cut *__restrict__ cuts, Tally *__restrict__ tallies, int shift, int is_first)
{
    __shared__ Tally kept[DIGITS];
    Tally *own = tallies + (size_t)blockIdx.x * DIGITS + threadIdx.x;
    kept[threadIdx.x] = *own;
    *own = Tally{0, 0};
    __syncthreads();
    Cut cut = cuts[blockIdx.x];
    if (threadIdx.x || !cut.is_open)
        return;
    if (is_first) {
        unsigned long long total = 0;
        for (int i = 0; i < DIGITS; i++)
            total += kept[i].mass;
        cut.wanted =
            cut.top_p < 1.0 ? cut.top_p * (double)total : (double)__uint_as_float(0x7f800000u);
    }
    int digit = DIGITS - 1;
    for (; digit >= 0; digit--) {
        const long long count = cut.count + (long long)kept[digit].count;
        const unsigned long long mass = cut.mass + kept[digit].mass;
        if (count >= cut.top_k || (double)mass >= cut.wanted)
            break;
        cut.count = count;
        cut.mass = mass;
    }
    if (digit >= 0)
        cut.last |= (unsigned long long)digit << shift;
    else
        cut.is_open = 0;
    cuts[blockIdx.x] = cut;
}
