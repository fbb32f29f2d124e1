/* What becomes of the tokens that a pass chose or ranked. A draft is open, so that the pass counts as run
 * for it, if the draft before it is there, or is open and of the same pass, and its row is not dead; where
 * it is chosen anew, if it was there before, too. Then it is its token, if there is one (no negative
 * number), if the draft before is there, and if it is probable enough.
 * A condition, where there is one, is set if there is any draft that is to go on; where the pass repeats
 * one before, if it changed a token. It is not put back: passes may set it together, and it does not hold
 * when a graph begins (`Device.condition`).
 * Drafts at a depth are judged before deeper ones of their text. Grid: 1. Block: 256.
 */
#include "cut.cuh"
#include "condition.cuh"
#include "draft.cuh"
#include "node.cuh"
#include "noise.cuh"
#include "ranked.cuh"

#define THREADS 256

/* A draft that this pass may choose; PICK of launch/passes.py. */
struct Pick {
    double p_min;
    int draft;
    int before; /* the draft before it; below 0: none before */
    int is_own; /* whether that one is of the same pass */
    int token;  /* which of the tokens that were chosen or ranked */
    int fill;   /* of its row, or of the nearest one before; -1: none */
    int kept;   /* the row that is kept of its output; -1: none */
    int depth;  /* how many drafts of its text are judged before it in this launch */
    int is_to_go_on;
};

/* The choices of a pass: `totals` are the masses of all tokens where it matters how probable they are. */
struct Chosen {
    const int *ids;
    const float *logits;
    const Chooser *choosers;
    const int *rows, *tops;
    const unsigned long long *totals;
    int n_vocab;

    __device__ __forceinline__ float probability(int i) const
    {
        const float *row = logits + (size_t)choosers[i].row * n_vocab;
        const float max = row[tops[i]];
        if (max > __uint_as_float(0xff800000u))
            return (float)((double)mass_of(row[rows[i]], max) / (double)totals[i]);
        return 0.0f;
    }

    __device__ __forceinline__ Ranked at(int i, double p_min) const
    {
        return Ranked{1.0, totals && p_min > 0.0 ? probability(i) : 1.0f, ids[i]};
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    draft(const int *__restrict__ ids, const Ranked *__restrict__ rankings,
          const Pick *__restrict__ picks, const int *__restrict__ is_dead,
          const float *__restrict__ logits, const Chooser *__restrict__ choosers,
          const int *__restrict__ rows, const int *__restrict__ tops,
          const unsigned long long *__restrict__ totals, Draft *drafts, Node *nodes,
          int *__restrict__ made, int n, int n_depths, int entry, int first_kept, int n_kept,
          int n_vocab, int is_whole, int is_anew, int is_repeated, unsigned long long condition)
{
    const Chosen chosen = {ids, logits, choosers, rows, tops, totals, n_vocab};
    __shared__ int any, any_open;
    if (threadIdx.x == 0)
        any = any_open = 0;
    __syncthreads();
    for (int depth = 0; depth < n_depths; depth++) {
        for (int i = threadIdx.x; i < n; i += THREADS) {
            const Pick pick = picks[i];
            if (pick.depth != depth)
                continue;
            const Ranked one = rankings ? rankings[pick.token] : chosen.at(pick.token, pick.p_min);
            const Draft last = drafts[pick.draft];
            const Draft before = pick.before < 0 ? Draft{0, 1} : drafts[pick.before];
            const bool is_open = (pick.is_own ? before.is_open : before.token >= 0) &&
                                 !(pick.fill >= 0 && is_dead[pick.fill]) &&
                                 !(is_anew && last.token < 0);
            const bool is_any = is_open && before.token >= 0 && one.token >= 0 &&
                                !((double)one.probability < pick.p_min);
            const int token = is_any ? one.token : -1;
            if (is_open)
                any_open = 1; /* all that write, write the same, here and below */
            if (pick.kept >= 0 && (!rankings || is_open))
                made[pick.kept] = is_open;
            if (is_repeated ? token != last.token : is_any && pick.is_to_go_on)
                any = 1;
            drafts[pick.draft] = Draft{token, is_open};
            nodes[pick.draft].worth =
                (pick.before < 0 ? 1.0 : nodes[pick.before].worth) * one.share;
            nodes[pick.draft].kept = pick.kept;
        }
        __syncthreads();
    }
    for (int i = threadIdx.x; i < n_kept && is_whole && any_open; i += THREADS)
        made[first_kept + i] = 1;
    if (threadIdx.x == 0 && any_open)
        drafts[entry].is_open = 1;
    if (threadIdx.x == 0 && condition && any)
        cudaGraphSetConditional(condition, 1);
}
