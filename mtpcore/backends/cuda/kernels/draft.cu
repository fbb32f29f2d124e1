/* What becomes of the tokens that a pass chose: each is a draft if there is one (no negative number), if
 * its sequence had all before, if the rows that were read for it are finite, and if it is probable
 * enough; and the sequence goes on if it is to, the token has an embedding, and the row that is read for
 * the next one is finite. A condition, where there is one, is set if any goes on; where the pass repeats
 * one before, if it changed a token. It is not put back: passes may set it together, and it does not hold
 * when a graph begins (`Device.condition`).
 * Where a pass chose several tokens of a sequence, those at a depth are judged before deeper ones.
 * Grid: 1. Block: 256.
 */
#include "cut.cuh"
#include "condition.cuh"
#include "draft.cuh"
#include "noise.cuh"

#define THREADS 256

/* A sequence in this pass; STEP of launch/passes.py. */
struct Step {
    double p_min;
    int number; /* of the draft, among all */
    int before; /* its draft before this one, among all drafts; -1: none before */
    int is_to_go_on;
    int depth; /* how many drafts of its sequence are judged before it in this launch */
    int first_read, n_read; /* rows that were read for it, and not for one before */
    int read_next;
};

/* Of each of n slots, which of so many rows are not finite. */
struct Marks {
    const int *marks;
    int n, n_rows;

    __device__ __forceinline__ bool are_finite(int first, int n_read) const
    {
        bool are = true;
        for (int slot = 0; slot < n; slot++)
            for (int row = first; row < first + n_read; row++)
                are = are && !marks[slot * n_rows + row];
        return are;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    draft(const int *__restrict__ ids, const Step *__restrict__ steps,
          const int *__restrict__ marks, const float *__restrict__ logits,
          const Chooser *__restrict__ choosers, const int *__restrict__ rows,
          const int *__restrict__ tops, const unsigned long long *__restrict__ totals,
          Draft *__restrict__ drafts, int n, int n_depths, int n_marks, int n_marked, int n_vocab,
          int n_tokens, int n_readable, int repeats, unsigned long long condition)
{
    const Marks rows_read = {marks, n_marks, n_marked};
    __shared__ int any;
    if (threadIdx.x == 0)
        any = 0;
    __syncthreads();
    for (int depth = 0; depth < n_depths; depth++) {
        for (int i = threadIdx.x; i < n; i += THREADS) {
            const Step &step = steps[i];
            if (step.depth != depth)
                continue;
            bool counts = step.before < 0 || drafts[step.before].goes_on;
            counts = counts && ids[i] >= 0 && rows_read.are_finite(step.first_read, step.n_read);
            if (totals && step.p_min > 0.0) {
                const float *row = logits + (size_t)choosers[i].row * n_vocab;
                const float max = row[tops[i]];
                float probability = 0.0f;
                if (max > __uint_as_float(0xff800000u))
                    probability = (float)((double)mass_of(row[rows[i]], max) / (double)totals[i]);
                counts = counts && !((double)probability < step.p_min);
            }
            const bool goes_on = counts && step.is_to_go_on && ids[i] < n_tokens &&
                                 rows_read.are_finite(step.read_next, 1);
            const int next = counts && ids[i] < n_readable ? ids[i] : 0;
            const int token = counts ? ids[i] : -1;
            if (repeats ? token != drafts[step.number].token : goes_on)
                any = 1; /* all that write, write the same */
            drafts[step.number] = Draft{token, next, goes_on};
        }
        __syncthreads();
    }
    if (threadIdx.x == 0 && condition && any)
        cudaGraphSetConditional(condition, 1);
}
