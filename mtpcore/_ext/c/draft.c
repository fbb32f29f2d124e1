#include "draft.h"

#include <math.h>
#include <string.h>

/* Copy what feeds the sequence's next row; zero where any of it is not finite. */
static int recycle_row(const mtp_run *run, mtp_draft *draft, int64_t output, int64_t row, int64_t to)
{
    for (int64_t s = 0; s < draft->n_recycled; s++) {
        const mtp_recycle *fed = &draft->recycled[s];
        const float *from = (const float *)run->buffers[fed->output] +
                            (fed->axis == MTP_OUTPUTS ? output : row) * fed->width;
        for (int64_t i = 0; i < fed->width; i++)
            if (!isfinite(from[i]))
                return 0;
        memcpy(fed->rows + to * fed->width, from, (size_t)fed->width * sizeof *from);
    }
    return 1;
}

/* Choose a draft for every sequence in the pass; make the next pass's rows in place (a sequence's
 * row never moves back). Returns how many sequences go on. */
static int64_t choose(mtp_run *run, mtp_draft *draft)
{
    const int64_t n = run->n_rows[MTP_OUTPUTS];
    int64_t going = 0;
    for (int64_t at = 0; at < n; at++) {
        mtp_draft_sequence *own = &draft->sequences[draft->active[at]];
        if (own->n_drafts >= own->k)
            continue;
        const int64_t n_before = own->n_history + own->n_drafts, row = run->outputs[at];
        const float *logits = (const float *)run->buffers[draft->logits] + at * draft->n_logits;
        float probability = 1.0f; /* a sum over all exponentials: only where it is asked for */
        const int32_t token = mtp_choose(
            logits, draft->n_logits, own->settings, own->history, n_before, own->n_prompt,
            n_before, draft->token_ids, own->scratch, own->p_min > 0.0 ? &probability : NULL);
        if (probability < own->p_min)
            continue;
        own->history[n_before] = token;
        own->n_drafts++;
        const int is_unknown = draft->n_tokens > 0 && token >= draft->n_tokens;
        if (own->n_drafts == own->k || is_unknown || !recycle_row(run, draft, at, row, going))
            continue;
        draft->tokens[going] = token;
        draft->seq[going] = run->seq[row];
        draft->place[going] = run->place[row] + 1;
        for (int64_t i = 0; i < run->n_axes; i++)
            draft->positions[going * run->n_axes + i] = run->positions[row * run->n_axes + i] + 1;
        draft->active[going++] = draft->active[at];
    }
    run->n_rows[MTP_TOKENS] = run->n_rows[MTP_OUTPUTS] = going;
    run->tokens = draft->tokens;
    run->positions = draft->positions;
    run->seq = draft->seq;
    run->place = draft->place;
    run->outputs = draft->outputs;
    for (int64_t s = 0; s < draft->n_recycled; s++)
        run->buffers[draft->recycled[s].slot] = draft->recycled[s].rows;
    return going;
}

typedef struct {
    const mtp_plan *plan;
    mtp_run *run;
    mtp_draft *draft;
    int64_t going; /* written by thread 0 between barriers */
} loop;

static void draft_as_task(void *argument, int thread, int n_threads)
{
    loop *self = argument;
    do {
        mtp_plan_walk(self->plan, self->run, self->plan->pool, thread, n_threads);
        if (n_threads > 1)
            mtp_pool_wait(self->plan->pool);
        if (thread == 0) {
            self->going = choose(self->run, self->draft);
            mtp_run_begin(self->run);
        }
        if (n_threads > 1)
            mtp_pool_wait(self->plan->pool);
    } while (self->going > 0);
}

void mtp_plan_draft(const mtp_plan *plan, mtp_run *run, mtp_draft *draft)
{
    loop self = {plan, run, draft, 0};
    mtp_run_begin(run);
    mtp_plan_start(plan, run, draft_as_task, &self);
}
