#include "plan/draft.h"

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
    draft->positions = part(memory, &used, (size_t)n_axes * of_rows);
    draft->seq = part(memory, &used, of_rows);
    draft->place = part(memory, &used, of_rows);
    draft->outputs = part(memory, &used, of_rows);
    draft->chosen = part(memory, &used, of_rows);
    draft->probabilities = part(memory, &used, m * sizeof *draft->probabilities);
    for (int64_t p = 0; p < draft->n_passes; p++) {
        mtp_draft_pass *pass = &draft->passes[p];
        const size_t n_rows = (size_t)pass->n_rows;
        pass->tokens = part(memory, &used, n_rows * sizeof(int32_t));
        pass->active = part(memory, &used, of_rows);
        for (int64_t s = 0; s < draft->n_recycled; s++) {
            mtp_recycle *slot = &pass->recycled[s];
            slot->rows = part(memory, &used, n_rows * (size_t)slot->width * sizeof *slot->rows);
        }
    }
    for (int64_t i = 0; memory && i < draft->n_sequences; i++) {
        draft->sequences[i] = (mtp_draft_sequence){.history = histories + i * most};
        draft->outputs[i] = (int32_t)i;
    }
    return used;
}

typedef struct {
    mtp_draft *draft;
    int shares; /* whether all threads choose together from logits that were written */
    /* Written by thread 0 while the others wait, as are the draft, its sequences and passes: */
    mtp_draft_pass *pass;
    int64_t n_written, going; /* rows of the pass's logits that are written; rows that go on */
} loop;

enum { SHARED_LOGITS = 1 << 14 };

/* Whether a choice from written logits takes longer than the threads' waiting for each other: one
 * that draws noise for every token, or sums up all exponentials. The largest logits are found in no
 * time. */
static int is_worth_sharing(const mtp_draft *draft)
{
    int is_long = 0;
    for (int64_t i = 0; i < draft->n_sequences; i++) {
        const mtp_draft_sequence *own = &draft->sequences[i];
        const mtp_sampling *settings = own->settings;
        int is_own = settings->temperature > 0.0 && settings->top_k == 0 && settings->min_p == 0.0;
        is_own |= own->p_min > 0.0;
        is_long |= is_own && !own->is_fused;
    }
    return is_long && draft->n_logits >= SHARED_LOGITS;
}

/* Note for which sequences sampling is fused into the output matmul, so that nobody reads the
 * logits. Returns whether there are any. */
static int find_fused(mtp_draft *draft)
{
    int can = 1, n_fused = 0;
    for (int64_t p = 0; p < draft->n_passes; p++) {
        const mtp_draft_pass *pass = &draft->passes[p];
        for (int64_t s = 0; s < draft->n_recycled; s++)
            can &= pass->recycled[s].output != pass->sampling.logits;
        can &= mtp_plan_n_logits(pass->plan, pass->sampling.logits) > 0;
    }
    for (int64_t i = 0; i < draft->n_sequences; i++) {
        mtp_draft_sequence *own = &draft->sequences[i];
        own->is_fused = can && mtp_can_fuse(own->settings) && own->p_min <= 0.0;
        n_fused += own->is_fused;
    }
    return n_fused > 0;
}

/* Where the pass writes row `at` of its logits. */
static float *logits_of(const mtp_draft *draft, const mtp_draft_pass *pass, int64_t at)
{
    return (float *)pass->run->buffers[pass->sampling.logits] + at * draft->n_logits;
}

static void wait_for_all(const mtp_draft_pass *pass, int n_threads)
{
    if (n_threads > 1)
        mtp_pool_wait(pass->plan->pool);
}

/* The sequence of row `at` of the logits; NULL if it wants no draft. */
static mtp_draft_sequence *sequence_of(const mtp_draft *draft, const mtp_draft_pass *pass,
                                       int64_t at)
{
    mtp_draft_sequence *own = &draft->sequences[pass->active[at]];
    return own->n_drafts < own->k ? own : NULL;
}

/* Begin a pass: say who chooses from each row of its logits. */
static void begin_pass(loop *self, mtp_draft_pass *pass)
{
    mtp_fused_sampling *sampling = &pass->sampling;
    self->pass = pass;
    self->n_written = 0;
    self->draft->n_run++;
    mtp_run_begin(pass->run);
    sampling->n = pass->run->n_rows[MTP_OUTPUTS];
    for (int64_t at = 0; at < sampling->n; at++) {
        const mtp_draft_sequence *own = sequence_of(self->draft, pass, at);
        mtp_row_sampler sampler = {0};
        if (own && own->is_fused) {
            sampler = (mtp_row_sampler){own->settings, own->index + own->n_drafts, NULL};
        } else if (own) {
            sampler.logits = logits_of(self->draft, pass, at);
            self->n_written++;
        }
        sampling->samplers[at] = sampler;
    }
}

/* Choose a draft from row `at` of the logits, all threads together; thread 0 notes the token,
 * and its probability where it is asked for: that is a sum over all exponentials. */
static void choose(const mtp_draft *draft, const mtp_draft_pass *pass,
                   const mtp_draft_sequence *own, int64_t at, int thread, int n_threads)
{
    const int n = n_threads < MTP_CHOICE_PARTS ? n_threads : MTP_CHOICE_PARTS;
    mtp_sampler_scratch *scratch = own->scratch;
    if (thread == 0) {
        const int64_t n_before = own->n_history + own->n_drafts;
        mtp_choice_begin(scratch, logits_of(draft, pass, at), draft->n_logits, own->settings,
                         own->history, n_before, own->n_prompt, own->index + own->n_drafts,
                         pass->sampling.token_ids, own->p_min > 0.0);
    }
    wait_for_all(pass, n_threads);
    if (thread < n)
        mtp_choice_scan(scratch, thread, n);
    wait_for_all(pass, n_threads);
    if (thread < n)
        mtp_choice_search(scratch, thread, n);
    wait_for_all(pass, n_threads);
    if (thread == 0)
        draft->chosen[at] =
            mtp_choice_end(scratch, n, own->p_min > 0.0 ? &draft->probabilities[at] : NULL);
}

/* What a pass made for output `at`, to feed a slot. */
static const float *made(const mtp_draft_pass *pass, const mtp_recycle *slot, int64_t at)
{
    const int64_t row = slot->axis == MTP_OUTPUTS ? at : pass->run->outputs[at];
    return (const float *)pass->run->buffers[slot->output] + row * slot->width;
}

/* What is given for a slot behind output `at`, whose draft was noted. */
static const float *given(const mtp_draft *draft, const mtp_draft_pass *pass,
                          const mtp_recycle *slot, int64_t at)
{
    const int64_t i = pass->active[at],
                  number = draft->sequences[i].n_drafts; /* of the next pass */
    return slot->given + (i * slot->n_given + number) * slot->width;
}

/* Whether what a pass made for output `at` is finite; what is given may be as it likes. */
static int is_sound(const mtp_draft *draft, const mtp_draft_pass *pass, int64_t at)
{
    for (int64_t s = 0; s < draft->n_recycled; s++) {
        const mtp_recycle *slot = &pass->recycled[s];
        const float *from = slot->given ? NULL : made(pass, slot, at);
        for (int64_t i = 0; from && i < slot->width; i++)
            if (!isfinite(from[i]))
                return 0;
    }
    return 1;
}

/* Make a draft, and what feeds its slots behind output `at`, row `to` of a pass that runs later. */
static void write_row(const mtp_draft *draft, const mtp_draft_pass *pass, int64_t at, int32_t token,
                      const mtp_draft_pass *later, int64_t to)
{
    later->tokens[to] = token;
    for (int64_t s = 0; s < draft->n_recycled; s++) {
        const mtp_recycle *slot = &pass->recycled[s];
        const float *from = slot->given ? given(draft, pass, slot, at) : made(pass, slot, at);
        memcpy(later->recycled[s].rows + to * slot->width, from,
               (size_t)slot->width * sizeof(float));
    }
}

/* Let a draft be row `to` of the same plan's next batch; a sequence's row never moves back. */
static void repeat_row(const mtp_draft *draft, mtp_draft_pass *pass, int64_t at, int32_t token,
                       int64_t to)
{
    const mtp_run *run = pass->run;
    const int64_t row = run->outputs[at];
    const int32_t step = !draft->in_place;
    write_row(draft, pass, at, token, pass, to);
    draft->seq[to] = run->seq[row];
    draft->place[to] = run->place[row] + step;
    for (int64_t i = 0; i < run->n_axes; i++)
        draft->positions[to * run->n_axes + i] = run->positions[row * run->n_axes + i] + step;
    pass->active[to] = pass->active[at];
}

/* Let a draft be a row of all later passes: of pass p the one that stands p - 1 - j rows before the
 * sequence's newest, for draft j, if it has so many. */
static void hand_on(const mtp_draft *draft, const mtp_draft_pass *pass, int64_t at, int32_t token)
{
    const int64_t number = pass - draft->passes;
    for (int64_t p = number + 1; p < draft->n_passes; p++) {
        const mtp_draft_pass *later = &draft->passes[p];
        const mtp_run *run = later->run;
        for (int64_t i = 0; i < run->n_rows[MTP_OUTPUTS]; i++) {
            const int64_t newest = run->outputs[i], row = newest - (p - 1 - number);
            if (later->active[i] == pass->active[at] && row >= 0 &&
                run->seq[row] == run->seq[newest])
                write_row(draft, pass, at, token, later, row);
        }
    }
}

/* Note a draft that was chosen from row `at`, and let later passes read it. Returns how many
 * sequences go on so far. */
static int64_t take(const mtp_draft *draft, mtp_draft_pass *pass, mtp_draft_sequence *own,
                    int64_t at, int32_t token, int64_t going)
{
    own->history[own->n_history + own->n_drafts++] = token;
    if (own->n_drafts == own->k)
        return going;
    if ((draft->n_tokens > 0 && token >= draft->n_tokens) || !is_sound(draft, pass, at)) {
        own->k = own->n_drafts;
        return going;
    }
    if (draft->n_passes > 1)
        hand_on(draft, pass, at, token);
    else
        repeat_row(draft, pass, at, token, going);
    return going + 1;
}

/* Point the run at the rows that are to be repeated. */
static void repeat_rows(const mtp_draft *draft, const mtp_draft_pass *pass, int64_t n)
{
    mtp_run *run = pass->run;
    run->n_rows[MTP_TOKENS] = run->n_rows[MTP_OUTPUTS] = n;
    run->tokens = pass->tokens;
    run->positions = draft->positions;
    run->seq = draft->seq;
    run->place = draft->place;
    run->outputs = draft->outputs;
    run->until = NULL;
    for (int64_t s = 0; s < draft->n_recycled; s++)
        run->buffers[pass->recycled[s].slot] = pass->recycled[s].rows;
}

/* Choose from the rows of logits that were written. Behind the last of them a thread looks at none:
 * thread 0 may write there already. */
static void choose_all(const loop *self, const mtp_draft_pass *pass, int64_t n_written, int thread,
                       int n_threads)
{
    const int n_choosing = self->shares ? n_threads : 1;
    if (thread >= n_choosing)
        return;
    for (int64_t at = 0; n_written > 0; at++) {
        const mtp_draft_sequence *own = sequence_of(self->draft, pass, at);
        if (own && !own->is_fused) {
            choose(self->draft, pass, own, at, thread, n_choosing);
            n_written--;
        }
    }
}

/* Take the draft of each row and begin the next pass: by thread 0, while the others wait. */
static void take_all(loop *self, mtp_draft_pass *pass, int n_threads)
{
    mtp_draft *draft = self->draft;
    const int64_t n = pass->sampling.n;
    int64_t going = 0;
    for (int64_t at = 0; at < n; at++) {
        mtp_draft_sequence *own = sequence_of(draft, pass, at);
        if (own == NULL)
            continue;
        if (own->is_fused)
            draft->chosen[at] = mtp_sampling_end(&pass->sampling, at, n_threads);
        if (own->p_min > 0.0 && draft->probabilities[at] < own->p_min)
            own->k = own->n_drafts;
        else
            going = take(draft, pass, own, at, draft->chosen[at], going);
    }
    self->going = going;
    if (draft->n_passes == 1)
        repeat_rows(draft, pass, going);
    if (going > 0)
        begin_pass(self, draft->n_passes == 1 ? pass : pass + 1);
}

static void draft_as_task(void *argument, int thread, int n_threads)
{
    loop *self = argument;
    do {
        mtp_draft_pass *pass = self->pass;
        const int64_t n_written = self->n_written;
        mtp_sampling_begin(&pass->sampling, thread);
        mtp_plan_walk(pass->plan, pass->run, pass->plan->pool, thread, n_threads);
        wait_for_all(pass, n_threads);
        if (mtp_was_interrupted(pass->run->interrupt))
            return;
        choose_all(self, pass, n_written, thread, n_threads);
        if (thread == 0)
            take_all(self, pass, n_threads);
        wait_for_all(pass, n_threads);
    } while (self->going > 0);
}

void mtp_draft_run(mtp_draft *draft)
{
    const int has_fused = find_fused(draft);
    loop self = {draft, is_worth_sharing(draft), NULL, 0, 0};
    for (int64_t p = 0; has_fused && p < draft->n_passes; p++)
        draft->passes[p].run->epilogue = mtp_sampling_epilogue(&draft->passes[p].sampling);
    begin_pass(&self, draft->passes);
    mtp_plan_start(self.pass->plan, self.pass->run, draft_as_task, &self);
    for (int64_t p = 0; p < draft->n_passes; p++)
        draft->passes[p].run->epilogue = (mtp_epilogue){0};
}
