#include "draft.h"

#include <math.h>
#include <string.h>

/* The next part of the memory, in whole lines. */
static void *part(char *memory, size_t *used, size_t bytes)
{
    char *found = memory ? memory + *used : NULL;
    *used += (bytes + 63) / 64 * 64;
    return found;
}

size_t mtp_draft_lay_out(mtp_draft *draft, int64_t most, int64_t n_axes, char *memory)
{
    const size_t m = (size_t)draft->n_sequences, of_rows = m * sizeof(int32_t);
    size_t used = 0;
    draft->sequences = part(memory, &used, m * sizeof *draft->sequences);
    int32_t *histories = part(memory, &used, (size_t)most * of_rows);
    draft->tokens = part(memory, &used, of_rows);
    draft->positions = part(memory, &used, (size_t)n_axes * of_rows);
    draft->seq = part(memory, &used, of_rows);
    draft->place = part(memory, &used, of_rows);
    draft->outputs = part(memory, &used, of_rows);
    draft->active = part(memory, &used, of_rows);
    for (int64_t s = 0; s < draft->n_recycled; s++) {
        mtp_recycle *fed = &draft->recycled[s];
        fed->rows = part(memory, &used, m * (size_t)fed->width * sizeof *fed->rows);
    }
    for (int64_t i = 0; memory && i < draft->n_sequences; i++) {
        draft->sequences[i] = (mtp_draft_sequence){.history = histories + i * most};
        draft->outputs[i] = draft->active[i] = (int32_t)i;
    }
    return used;
}

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

typedef struct {
    const mtp_plan *plan;
    mtp_run *run;
    mtp_draft *draft;
    int races;     /* whether tokens run while their logits are made, which are not kept */
    int shares;    /* otherwise: whether all threads choose together */
    int64_t going; /* written by thread 0 between barriers */
} loop;

enum { SHARED_LOGITS = 1 << 14 };

/* Whether a choice takes longer than the threads' waiting for each other: one that draws noise for
 * every token, or sums up all exponentials. The largest logits are found in no time. */
static int is_worth_sharing(const mtp_draft *draft)
{
    int is_long = 0;
    for (int64_t i = 0; i < draft->n_sequences; i++) {
        const mtp_sampling *own = draft->sequences[i].settings;
        is_long |= own->temperature > 0.0 && own->top_k == 0 && own->min_p == 0.0;
        is_long |= draft->sequences[i].p_min > 0.0;
    }
    return is_long && draft->n_logits >= SHARED_LOGITS;
}

static void wait_for_all(const loop *self, int n_threads)
{
    if (n_threads > 1)
        mtp_pool_wait(self->plan->pool);
}

/* The sequence of row `at` of the logits; NULL if it wants no draft. */
static mtp_draft_sequence *sequence_of(const mtp_draft *draft, int64_t at)
{
    mtp_draft_sequence *own = &draft->sequences[draft->active[at]];
    return own->n_drafts < own->k ? own : NULL;
}

/* Whether tokens can be chosen while their logits are made, which nobody reads then. */
static int can_race(const mtp_plan *plan, const mtp_draft *draft)
{
    int is_race = draft->n_sequences <= MTP_UNIT;
    for (int64_t i = 0; i < draft->n_sequences; i++) {
        const mtp_draft_sequence *own = &draft->sequences[i];
        is_race &= mtp_is_race(own->settings) && own->p_min <= 0.0;
    }
    for (int64_t s = 0; s < draft->n_recycled; s++)
        is_race &= draft->recycled[s].output != draft->choices.logits;
    return is_race && mtp_plan_can_choose(plan, draft->choices.logits);
}

/* Say who chooses from each row of the next pass. */
static void name_choosers(mtp_draft *draft, int64_t n)
{
    draft->choices.n = n;
    for (int64_t at = 0; at < n; at++) {
        const mtp_draft_sequence *own = sequence_of(draft, at);
        draft->choices.choosers[at] =
            own ? (mtp_chooser){own->settings, own->n_history + own->n_drafts}
                : (mtp_chooser){NULL, 0};
    }
}

/* Choose a draft from row `at`, all threads together; thread 0 gets the token, and its probability
 * where it is asked for: that is a sum over all exponentials. */
static int32_t choose(const loop *self, mtp_draft_sequence *own, int64_t at, float *probability,
                      int thread, int n_threads)
{
    const mtp_draft *draft = self->draft;
    const int n = n_threads < MTP_CHOICE_PARTS ? n_threads : MTP_CHOICE_PARTS;
    mtp_sampler_scratch *scratch = own->scratch;
    *probability = 1.0f;
    if (thread == 0) {
        const float *logits = (const float *)self->run->buffers[draft->choices.logits];
        const int64_t n_before = own->n_history + own->n_drafts;
        mtp_choice_begin(scratch, logits + at * draft->n_logits, draft->n_logits, own->settings,
                         own->history, n_before, own->n_prompt, n_before, draft->choices.token_ids,
                         own->p_min > 0.0);
    }
    wait_for_all(self, n_threads);
    if (thread < n)
        mtp_choice_scan(scratch, thread, n);
    wait_for_all(self, n_threads);
    if (thread < n)
        mtp_choice_race(scratch, thread, n);
    wait_for_all(self, n_threads);
    return thread == 0 ? mtp_choice_end(scratch, n, own->p_min > 0.0 ? probability : NULL) : 0;
}

/* Note a draft that was chosen from row `at`; make the next pass's row in place (a sequence's row
 * never moves back). Returns how many sequences go on so far. */
static int64_t take(mtp_run *run, mtp_draft *draft, mtp_draft_sequence *own, int64_t at,
                    int32_t token, int64_t going)
{
    const int64_t row = run->outputs[at];
    own->history[own->n_history + own->n_drafts++] = token;
    const int is_unknown = draft->n_tokens > 0 && token >= draft->n_tokens;
    if (own->n_drafts == own->k || is_unknown || !recycle_row(run, draft, at, row, going))
        return going;
    draft->tokens[going] = token;
    draft->seq[going] = run->seq[row];
    draft->place[going] = run->place[row] + 1;
    for (int64_t i = 0; i < run->n_axes; i++)
        draft->positions[going * run->n_axes + i] = run->positions[row * run->n_axes + i] + 1;
    draft->active[going] = draft->active[at];
    return going + 1;
}

/* Point the run at the rows of the next pass. */
static void go_on(mtp_run *run, const mtp_draft *draft, int64_t going)
{
    run->n_rows[MTP_TOKENS] = run->n_rows[MTP_OUTPUTS] = going;
    run->tokens = draft->tokens;
    run->positions = draft->positions;
    run->seq = draft->seq;
    run->place = draft->place;
    run->outputs = draft->outputs;
    for (int64_t s = 0; s < draft->n_recycled; s++)
        run->buffers[draft->recycled[s].slot] = draft->recycled[s].rows;
    mtp_run_begin(run);
}

/* Choose a draft from each of n rows and prepare the next pass. Only thread 0 writes; of what it
 * writes others read nothing before the next barrier. */
static void choose_all(loop *self, int64_t n, int thread, int n_threads)
{
    mtp_draft *draft = self->draft;
    const int n_choosing = self->shares ? n_threads : 1;
    int64_t going = 0;
    for (int64_t at = 0; at < n && thread < n_choosing; at++) {
        mtp_draft_sequence *own = sequence_of(draft, at);
        float probability = 1.0f;
        if (own == NULL)
            continue;
        const int32_t token = self->races
                                  ? mtp_choices_end(&draft->choices, at, n_threads)
                                  : choose(self, own, at, &probability, thread, n_choosing);
        if (thread == 0 && !(probability < own->p_min))
            going = take(self->run, draft, own, at, token, going);
    }
    if (thread == 0) {
        self->going = going;
        go_on(self->run, draft, going);
        if (self->races)
            name_choosers(draft, going);
    }
    wait_for_all(self, n_threads);
}

static void draft_as_task(void *argument, int thread, int n_threads)
{
    loop *self = argument;
    do {
        const int64_t n = self->run->n_rows[MTP_OUTPUTS];
        if (self->races)
            mtp_choices_begin(&self->draft->choices, thread);
        mtp_plan_walk(self->plan, self->run, self->plan->pool, thread, n_threads);
        wait_for_all(self, n_threads);
        choose_all(self, n, thread, n_threads);
    } while (self->going > 0);
}

void mtp_plan_draft(const mtp_plan *plan, mtp_run *run, mtp_draft *draft)
{
    const int races = can_race(plan, draft);
    loop self = {plan, run, draft, races, !races && is_worth_sharing(draft), 0};
    if (races) {
        name_choosers(draft, draft->n_sequences);
        run->taker = mtp_choices_taker(&draft->choices);
    }
    mtp_run_begin(run);
    mtp_plan_start(plan, run, draft_as_task, &self);
    run->taker = (mtp_taker){0};
}
