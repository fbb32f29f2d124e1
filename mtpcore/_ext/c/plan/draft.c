#include "plan/draft.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* The next part of the memory, in whole lines. */
static void *part(char *memory, size_t *used, size_t bytes)
{
    char *found = memory ? memory + *used : NULL;
    *used += mtp_whole_lines(bytes);
    return found;
}

/* The most rows that a pass has as the loop writes them, or that choose in one. */
static size_t most_rows(const mtp_draft *draft)
{
    int64_t most = draft->n_sequences;
    for (int64_t p = 0; p < draft->n_passes; p++) {
        const mtp_draft_pass *pass = &draft->passes[p];
        const int64_t n_outputs = pass->run->n_rows[MTP_OUTPUTS];
        const int64_t n = n_outputs > pass->n_rows ? n_outputs : pass->n_rows;
        most = n > most ? n : most;
    }
    return (size_t)most;
}

size_t mtp_draft_lay_out(mtp_draft *draft, int64_t most, int64_t n_axes, char *memory)
{
    const size_t m = (size_t)draft->n_sequences, n = most_rows(draft);
    const size_t of_rows = n * sizeof(int32_t);
    size_t used = 0;
    draft->sequences = part(memory, &used, m * sizeof *draft->sequences);
    int32_t *histories = part(memory, &used, (size_t)most * m * sizeof *histories);
    draft->positions = part(memory, &used, (size_t)n_axes * of_rows);
    draft->seq = part(memory, &used, of_rows);
    draft->place = part(memory, &used, of_rows);
    draft->outputs = part(memory, &used, of_rows);
    draft->probabilities = part(memory, &used, n * sizeof *draft->probabilities);
    for (int64_t p = 0; p < draft->n_passes; p++) {
        mtp_draft_pass *pass = &draft->passes[p];
        const size_t n_rows = (size_t)pass->n_rows;
        pass->tokens = part(memory, &used, n_rows * sizeof(int32_t));
        pass->active = part(memory, &used, of_rows);
        for (int64_t s = 0; s < pass->n_recycled; s++) {
            mtp_recycle *slot = &pass->recycled[s];
            slot->rows = part(memory, &used, n_rows * (size_t)slot->stride * sizeof *slot->rows);
        }
    }
    for (size_t i = 0; memory && i < m; i++)
        draft->sequences[i] = (mtp_draft_sequence){.history = histories + i * (size_t)most};
    for (size_t i = 0; memory && i < n; i++)
        draft->outputs[i] = (int32_t)i;
    return used;
}

typedef struct {
    mtp_draft *draft;
    int shares; /* whether all threads choose together from logits that were written */
    /* Written by thread 0 while the others wait, as are the draft, its sequences and passes: */
    mtp_draft_pass *pass;
    int64_t n_written, going;  /* rows of the pass's logits that are written; rows that go on */
    int is_over;               /* whether the drafts end before the row that chooses */
    int64_t n_left, n_changed; /* of a block: drafts before a pass; those that it changed */
} loop;

enum { SHARED_LOGITS = 1 << 14 };

/* Whether a choice from written logits takes longer than the threads' waiting for each other: one
 * that draws noise for every token, or sums up all exponentials. The largest logits are found in no
 * time. */
static int is_worth_sharing(const mtp_draft *draft)
{
    int are_written = 0, is_long = 0;
    for (int64_t p = 0; p < draft->n_passes; p++)
        are_written |= !draft->passes[p].can_fuse;
    for (int64_t i = 0; i < draft->n_sequences; i++) {
        const mtp_draft_sequence *own = &draft->sequences[i];
        const mtp_sampling *settings = own->settings;
        int is_own = settings->temperature > 0.0 && settings->top_k == 0 && settings->min_p == 0.0;
        is_own |= own->p_min > 0.0;
        is_long |= is_own && (are_written || !own->can_fuse);
    }
    return is_long && draft->n_logits >= SHARED_LOGITS;
}

/* Whether a pass only makes rows for a post-head. */
static int is_before_post_head(const mtp_draft *draft, const mtp_draft_pass *pass)
{
    return draft->is_block && draft->n_passes > 1 && pass == draft->passes;
}

/* Note where sampling is fused into the output matmul, so that nobody reads the logits. */
static void find_fused(mtp_draft *draft)
{
    int has_fused = 0;
    for (int64_t i = 0; i < draft->n_sequences; i++) {
        mtp_draft_sequence *own = &draft->sequences[i];
        own->can_fuse = mtp_can_fuse(own->settings) && own->p_min <= 0.0;
        has_fused |= own->can_fuse;
    }
    for (int64_t p = 0; p < draft->n_passes; p++) {
        mtp_draft_pass *pass = &draft->passes[p];
        pass->can_fuse = !is_before_post_head(draft, pass) &&
                         mtp_plan_n_logits(pass->plan, pass->sampling.logits) > 0;
        for (int64_t s = 0; s < pass->n_recycled; s++)
            pass->can_fuse &= pass->recycled[s].output != pass->sampling.logits;
        if (pass->can_fuse && has_fused)
            pass->run->epilogue = mtp_sampling_epilogue(&pass->sampling);
    }
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

/* Which draft of its sequence row `at` of the logits chooses. */
static int64_t number_of(const mtp_draft_sequence *own, int64_t at)
{
    return own->n_drafts + at - own->at;
}

/* The sequence of row `at` of the logits; NULL if it wants no draft of that row. */
static mtp_draft_sequence *sequence_of(const mtp_draft *draft, const mtp_draft_pass *pass,
                                       int64_t at)
{
    if (pass->active[at] < 0)
        return NULL;
    mtp_draft_sequence *own = &draft->sequences[pass->active[at]];
    return number_of(own, at) < own->k ? own : NULL;
}

/* Begin a pass: say who chooses from each row of its logits. */
static void begin_pass(loop *self, mtp_draft_pass *pass)
{
    mtp_draft *draft = self->draft;
    mtp_fused_sampling *sampling = &pass->sampling;
    self->pass = pass;
    self->n_written = self->n_changed = 0;
    draft->n_run++;
    mtp_run_begin(pass->run);
    sampling->n = pass->run->n_rows[MTP_OUTPUTS];
    for (int64_t at = 0; at < sampling->n; at++) {
        const int64_t i = pass->active[at];
        if (i >= 0 && (at == 0 || pass->active[at - 1] != i))
            draft->sequences[i].at = at;
        const mtp_draft_sequence *own = sequence_of(draft, pass, at);
        mtp_row_sampler sampler = {0};
        if (own && own->can_fuse && pass->can_fuse) {
            sampler = (mtp_row_sampler){own->settings, own->index + number_of(own, at), NULL};
        } else if (own) {
            sampler.logits = logits_of(draft, pass, at);
            self->n_written++;
        }
        sampling->samplers[at] = sampler;
    }
}

static int is_finite(const float *x, int64_t n)
{
    int are = 1;
    for (int64_t i = 0; i < n; i++)
        are &= fabsf(x[i]) <= FLT_MAX;
    return are;
}

static int has_nan(const float *x, int64_t n)
{
    int has = 0;
    for (int64_t i = 0; i < n; i++)
        has |= x[i] != x[i];
    return has;
}

/* Note a draft behind those that its sequence has; where no token was left to choose its drafts end
 * before it. */
static void note(loop *self, mtp_draft_sequence *own, int64_t number, int32_t token)
{
    if (token == MTP_NO_TOKEN) {
        own->k = number;
        return;
    }
    int32_t *to = own->history + own->n_history + number;
    self->n_changed += *to != token;
    *to = token;
}

/* Choose a draft from row `at` of the logits, all threads together; thread 0 notes the token, and
 * its probability where it is asked for: that is a sum over all exponentials. */
static void choose(loop *self, const mtp_draft_pass *pass, int64_t at, int thread, int n_threads)
{
    const int n = n_threads < MTP_CHOICE_PARTS ? n_threads : MTP_CHOICE_PARTS;
    const mtp_draft *draft = self->draft;
    mtp_draft_sequence *own = &draft->sequences[pass->active[at]];
    mtp_sampler_scratch *scratch = own->scratch;
    const int64_t number = number_of(own, at);
    if (thread == 0) {
        const float *logits = logits_of(draft, pass, at);
        if (draft->is_block && number < own->k && has_nan(logits, draft->n_logits))
            own->k = number;
        self->is_over = number >= own->k;
        if (!self->is_over)
            mtp_choice_begin(scratch, logits, draft->n_logits, own->settings, own->history,
                             own->n_history + number, own->n_prompt, own->index + number,
                             pass->sampling.token_ids, own->p_min > 0.0);
    }
    wait_for_all(pass, n_threads);
    if (thread < n && !self->is_over)
        mtp_choice_scan(scratch, thread, n);
    wait_for_all(pass, n_threads);
    if (thread < n && !self->is_over)
        mtp_choice_search(scratch, thread, n);
    wait_for_all(pass, n_threads);
    if (thread == 0 && !self->is_over) {
        float *probability = own->p_min > 0.0 ? &draft->probabilities[at] : NULL;
        note(self, own, number, mtp_choice_end(scratch, n, probability));
        if (probability && *probability < own->p_min && !draft->most_passes)
            own->k = number;
    }
}

/* What a pass made for output `at`, to feed a slot. */
static const float *made(const mtp_draft_pass *pass, const mtp_recycle *slot, int64_t at)
{
    const int64_t row = slot->axis == MTP_OUTPUTS ? at : pass->run->outputs[at];
    return (const float *)pass->run->buffers[slot->output] + row * slot->width;
}

/* Whether what a pass made for output `at` is finite. */
static int is_sound(const mtp_draft_pass *pass, int64_t at)
{
    for (int64_t s = 0; s < pass->n_recycled; s++)
        if (!is_finite(made(pass, &pass->recycled[s], at), pass->recycled[s].width))
            return 0;
    return 1;
}

/* Let drafts of a block end before its first row that is not finite. */
static void end_at_unsound(const mtp_draft *draft)
{
    for (int64_t i = 0; i < draft->n_sequences; i++) {
        mtp_draft_sequence *own = &draft->sequences[i];
        int64_t row = own->begin;
        while (row < own->first + own->k && is_sound(draft->passes, row))
            row++;
        own->k = row > own->first ? row - own->first : 0;
    }
}

static int has_embedding(const mtp_draft *draft, int32_t token)
{
    return draft->n_tokens == 0 || token < draft->n_tokens;
}

/* Make a draft, and what feeds its slots behind output `at`, row `to` of a pass that runs later. */
static void write_row(const mtp_draft_pass *pass, int64_t at, int32_t token,
                      const mtp_draft_pass *later, int64_t to)
{
    later->tokens[to] = token;
    for (int64_t s = 0; s < pass->n_recycled; s++) {
        const mtp_recycle *slot = &later->recycled[s];
        memcpy(slot->rows + to * slot->stride + slot->column, made(pass, &pass->recycled[s], at),
               (size_t)slot->width * sizeof(float));
    }
}

/* Let row `to` of the next pass be where a row of a run is, or a step behind it. */
static void place_row(const mtp_draft *draft, const mtp_run *run, int64_t row, int32_t step,
                      int64_t to)
{
    draft->seq[to] = run->seq[row];
    draft->place[to] = run->place[row] + step;
    for (int64_t i = 0; i < run->n_axes; i++)
        draft->positions[to * run->n_axes + i] = run->positions[row * run->n_axes + i] + step;
}

/* Let a draft be row `to` of the same plan's next batch; a sequence's row never moves back. */
static void repeat_row(const mtp_draft *draft, mtp_draft_pass *pass, int64_t at, int32_t token,
                       int64_t to)
{
    write_row(pass, at, token, pass, to);
    place_row(draft, pass->run, pass->run->outputs[at], !draft->in_place, to);
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
                write_row(pass, at, token, later, row);
        }
    }
}

/* Point the run at rows that the loop wrote. */
static void read_rows(const mtp_draft *draft, const mtp_draft_pass *pass, int64_t n,
                      int64_t n_outputs)
{
    mtp_run *run = pass->run;
    run->n_rows[MTP_TOKENS] = n;
    run->n_rows[MTP_OUTPUTS] = n_outputs;
    run->tokens = pass->tokens;
    run->positions = draft->positions;
    run->seq = draft->seq;
    run->place = draft->place;
    run->outputs = draft->outputs;
    run->until = NULL;
    for (int64_t s = 0; s < pass->n_recycled; s++)
        run->buffers[pass->recycled[s].slot] = pass->recycled[s].rows;
}

/* Let a post-head's next pass read the row of each sequence's next draft, or all rows up to the
 * last ones, each behind the draft before its own. Where the rows are those of its last pass only
 * tokens changed. Returns how many rows choose. */
static int64_t follow_block(const mtp_draft *draft, int are_the_same)
{
    mtp_draft_pass *pass = &draft->passes[1];
    int64_t n = 0, n_outputs = 0;
    for (int64_t i = 0; i < draft->n_sequences; i++) {
        const mtp_draft_sequence *own = &draft->sequences[i];
        if (own->n_drafts >= own->k)
            continue;
        const int64_t next = own->first + own->n_drafts;
        const int64_t begin = draft->most_passes ? own->begin : next;
        const int64_t end = draft->most_passes ? own->first + own->k : next + 1;
        const int32_t *drafts = own->history + own->n_history;
        for (int64_t row = begin; row < end; row++, n++) {
            const int64_t before = row - own->first - 1; /* the number of the draft before */
            int32_t token = before >= 0 ? drafts[before] : draft->rows.tokens[row];
            if (!has_embedding(draft, token))
                token = 0; /* it may still change */
            if (row >= next) {
                pass->active[n_outputs] = (int32_t)i;
                draft->outputs[n_outputs++] = (int32_t)n;
            }
            pass->tokens[n] = token;
            if (are_the_same)
                continue;
            write_row(draft->passes, row, token, pass, n);
            place_row(draft, &draft->rows, row, 0, n);
        }
    }
    read_rows(draft, pass, n, n_outputs);
    return n_outputs;
}

/* Take a draft that was chosen from row `at`, and let later passes read it. Returns how many
 * sequences go on so far. */
static int64_t take(const mtp_draft *draft, mtp_draft_pass *pass, mtp_draft_sequence *own,
                    int64_t at, int64_t going)
{
    const int32_t token = own->history[own->n_history + own->n_drafts++];
    if (own->n_drafts == own->k)
        return going;
    if (!has_embedding(draft, token) || !is_sound(pass, at)) {
        own->k = own->n_drafts;
        return going;
    }
    if (draft->is_block)
        return going + 1; /* its row is known */
    if (draft->n_passes > 1)
        hand_on(draft, pass, at, token);
    else
        repeat_row(draft, pass, at, token, going);
    return going + 1;
}

/* Choose from the rows of logits that were written. Behind the last of them a thread looks at none:
 * thread 0 may write there already. */
static void choose_all(loop *self, const mtp_draft_pass *pass, int64_t n_written, int thread,
                       int n_threads)
{
    const int n_choosing = self->shares ? n_threads : 1;
    if (thread >= n_choosing)
        return;
    for (int64_t at = 0; n_written > 0; at++) {
        if (pass->sampling.samplers[at].logits) {
            choose(self, pass, at, thread, n_choosing);
            n_written--;
        }
    }
}

/* Take the draft of each sequence; returns how many go on. */
static int64_t take_all(const mtp_draft *draft, mtp_draft_pass *pass)
{
    const int64_t n = pass->sampling.n;
    int64_t going = 0;
    for (int64_t at = 0; at < n; at++) {
        mtp_draft_sequence *own = sequence_of(draft, pass, at);
        if (own)
            going = take(draft, pass, own, at, going);
    }
    if (draft->is_block)
        return follow_block(draft, 0);
    if (draft->n_passes == 1)
        read_rows(draft, pass, going, going);
    return going;
}

/* Take all drafts of a pass before the first that is not probable enough, and up to one without an
 * embedding. */
static void end_block(const mtp_draft *draft)
{
    for (int64_t i = 0; i < draft->n_sequences; i++) {
        mtp_draft_sequence *own = &draft->sequences[i];
        const float *probabilities = draft->probabilities + own->at;
        for (int64_t j = 0; j < own->k; j++) {
            if (own->p_min > 0.0 && probabilities[j] < own->p_min)
                own->k = j;
            else if (!has_embedding(draft, own->history[own->n_history + j]))
                own->k = j + 1;
        }
        own->n_drafts = own->k;
    }
}

/* Take all drafts of a block where they are settled, or let its post-head choose them anew; returns
 * how many rows do. */
static int64_t refine(loop *self, const mtp_draft_pass *pass)
{
    const mtp_draft *draft = self->draft;
    int64_t n = 0;
    for (int64_t i = 0; i < draft->n_sequences; i++)
        n += draft->sequences[i].k;
    const int are_the_same = pass != draft->passes && n == self->n_left;
    self->n_left = n;
    if ((are_the_same && self->n_changed == 0) || n == 0 || draft->n_run > draft->most_passes) {
        end_block(draft);
        return 0;
    }
    return follow_block(draft, are_the_same);
}

static mtp_draft_pass *pass_behind(const mtp_draft *draft, mtp_draft_pass *pass)
{
    if (draft->n_passes == 1)
        return pass;
    return draft->is_block ? &draft->passes[1] : pass + 1;
}

/* Take drafts and begin the next pass: by thread 0, while the others wait. */
static void go_on(loop *self, mtp_draft_pass *pass, int n_threads)
{
    mtp_draft *draft = self->draft;
    for (int64_t at = 0; at < pass->sampling.n; at++) {
        mtp_draft_sequence *own = sequence_of(draft, pass, at);
        if (own && pass->sampling.samplers[at].settings)
            note(self, own, number_of(own, at), mtp_sampling_end(&pass->sampling, at, n_threads));
    }
    const int makes_all = draft->is_block && (draft->n_passes == 1 || draft->most_passes);
    self->going = makes_all ? refine(self, pass) : take_all(draft, pass);
    if (self->going > 0)
        begin_pass(self, pass_behind(draft, pass));
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
        if (thread == 0 && is_before_post_head(self->draft, pass))
            end_at_unsound(self->draft);
        choose_all(self, pass, n_written, thread, n_threads);
        if (thread == 0)
            go_on(self, pass, n_threads);
        wait_for_all(pass, n_threads);
    } while (self->going > 0);
}

void mtp_draft_run(mtp_draft *draft)
{
    loop self = {.draft = draft};
    find_fused(draft);
    self.shares = is_worth_sharing(draft);
    begin_pass(&self, draft->passes);
    mtp_plan_start(self.pass->plan, self.pass->run, draft_as_task, &self);
    for (int64_t p = 0; p < draft->n_passes; p++)
        draft->passes[p].run->epilogue = (mtp_epilogue){0};
}
