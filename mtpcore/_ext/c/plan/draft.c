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

static int32_t *integers(char *memory, size_t *used, int64_t n)
{
    return part(memory, used, (size_t)n * sizeof(int32_t));
}

static void lay_out_stage(const mtp_schedule *schedule, mtp_stage *stage, char *memory,
                          size_t *used)
{
    const int64_t n = stage->n_rows, m = stage->n_outputs;
    stage->fills = part(memory, used, (size_t)stage->n_fills * sizeof *stage->fills);
    stage->picks = part(memory, used, (size_t)stage->n_picks * sizeof *stage->picks);
    stage->made = part(memory, used, (size_t)schedule->n_names * sizeof *stage->made);
    stage->tokens = integers(memory, used, n);
    stage->seq = integers(memory, used, n);
    stage->place = integers(memory, used, n);
    stage->positions = integers(memory, used, n * stage->n_axes);
    stage->before = integers(memory, used, n);
    stage->until = integers(memory, used, n);
    stage->outputs = integers(memory, used, m);
    stage->at = integers(memory, used, m);
    stage->row = integers(memory, used, m);
    stage->is_finite = part(memory, used, (size_t)m);
    if (stage->kept_width > 0)
        stage->kept = part(memory, used, (size_t)(m * stage->kept_width) * sizeof(float));
}

size_t mtp_schedule_lay_out(mtp_schedule *schedule, int64_t most, char *memory)
{
    int64_t most_rows = 1, most_positions = 1;
    size_t used = 0;
    for (int64_t s = 0; s < schedule->n_stages; s++) {
        const mtp_stage *stage = &schedule->stages[s];
        const int64_t n_positions = stage->n_rows * stage->n_axes;
        most_rows = stage->n_rows > most_rows ? stage->n_rows : most_rows;
        most_positions = n_positions > most_positions ? n_positions : most_positions;
    }
    schedule->texts = part(memory, &used, (size_t)schedule->n_texts * sizeof(mtp_text));
    schedule->drafts = part(memory, &used, (size_t)schedule->n_drafts * sizeof(mtp_draft_token));
    int32_t *histories = integers(memory, &used, most * schedule->n_texts);
    for (int64_t i = 0; memory && i < schedule->n_texts; i++)
        schedule->texts[i] = (mtp_text){.history = histories + i * most};
    schedule->tokens = integers(memory, &used, most_rows);
    schedule->seq = integers(memory, &used, most_rows);
    schedule->place = integers(memory, &used, most_rows);
    schedule->positions = integers(memory, &used, most_positions);
    schedule->until = integers(memory, &used, most_rows);
    schedule->outputs = integers(memory, &used, most_rows);
    schedule->is_dead = integers(memory, &used, most_rows);
    schedule->row_at = integers(memory, &used, most_rows);
    for (int64_t s = 0; s < schedule->n_stages; s++)
        lay_out_stage(schedule, &schedule->stages[s], memory, &used);
    return used;
}

typedef struct {
    mtp_schedule *schedule;
    int shares; /* whether all threads choose together from logits that were written */
    /* Written by thread 0 while the others wait, as are the schedule and its stages: */
    mtp_stage *stage;  /* NULL: all have run */
    int64_t n_written; /* rows of its logits that are written */
    int64_t n_runs;    /* how often it ran */
    int64_t n_changed; /* drafts that it chose otherwise than they were chosen before */
    int is_over;       /* whether nothing is chosen from a row of logits */
} loop;

enum { SHARED_LOGITS = 1 << 14 };

/* Whether a choice from written logits takes longer than the threads' waiting for each other: one
 * that draws noise for every token, or sums up all exponentials. The largest logits are found in no
 * time. */
static int is_worth_sharing(const mtp_schedule *schedule)
{
    int are_written = 0, is_long = 0;
    for (int64_t s = 0; s < schedule->n_stages; s++)
        are_written |= schedule->stages[s].n_picks > 0 && !schedule->stages[s].can_fuse;
    for (int64_t i = 0; i < schedule->n_texts; i++) {
        const mtp_text *text = &schedule->texts[i];
        const mtp_sampling *settings = text->settings;
        int is_own = settings->temperature > 0.0 && settings->top_k == 0 && settings->min_p == 0.0;
        is_own |= text->p_min > 0.0;
        is_long |= is_own && (are_written || !text->can_fuse);
    }
    return is_long && schedule->n_logits >= SHARED_LOGITS;
}

/* Note where sampling is fused into the output matmul, so that nobody reads the logits. */
static void find_fused(mtp_schedule *schedule)
{
    int has_fused = 0;
    for (int64_t i = 0; i < schedule->n_texts; i++) {
        mtp_text *text = &schedule->texts[i];
        text->can_fuse = mtp_can_fuse(text->settings) && text->p_min <= 0.0;
        has_fused |= text->can_fuse;
    }
    for (int64_t s = 0; s < schedule->n_stages; s++) {
        mtp_stage *stage = &schedule->stages[s];
        stage->can_fuse = has_fused && stage->n_picks > 0 &&
                          mtp_plan_n_logits(stage->plan, stage->sampling.logits) > 0;
        for (int64_t i = 0; i < schedule->n_names; i++)
            stage->can_fuse &= stage->made[i].buffer != stage->sampling.logits;
    }
}

static void wait_for_all(const mtp_stage *stage, int n_threads)
{
    if (n_threads > 1)
        mtp_pool_wait(stage->plan->pool);
}

static int are_finite(const float *x, int64_t n)
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

/* -- before a stage runs --------------------------------------------------------------------- */

/* What a stage made for an output, by name. */
static const float *made(const mtp_stage *stage, int64_t output, int64_t name)
{
    const mtp_made *own = &stage->made[name];
    if (stage->kept)
        return stage->kept + output * stage->kept_width + own->column;
    const int64_t row = own->axis == MTP_OUTPUTS ? stage->at[output] : stage->row[output];
    return (const float *)stage->run->buffers[own->buffer] + row * own->width;
}

/* Whether what a stage made for the slots of another one's rows is finite. */
static int feeds_are_finite(mtp_stage *source, int64_t output, const mtp_stage *stage)
{
    int8_t *known = &source->is_finite[output];
    if (*known < 0) {
        *known = 1;
        for (int64_t i = 0; i < stage->n_feeds; i++) {
            const int64_t name = stage->feeds[i].name;
            *known &= (int8_t)are_finite(made(source, output, name), source->made[name].width);
        }
    }
    return *known;
}

static void forget_finite(const mtp_schedule *schedule)
{
    for (int64_t s = 0; s < schedule->n_stages; s++)
        memset(schedule->stages[s].is_finite, -1, (size_t)schedule->stages[s].n_outputs);
}

static int has_embedding(const mtp_schedule *schedule, int32_t token)
{
    return schedule->n_tokens == 0 || token < schedule->n_tokens;
}

/* The stage and output that feed a fill's row; NULL where nothing does. */
static mtp_stage *source_of(const mtp_schedule *schedule, const mtp_fill *fill, int64_t *output)
{
    *output = fill->output;
    if (fill->stage == MTP_KNOWN)
        return NULL;
    if (fill->stage != MTP_OF_DRAFT)
        return &schedule->stages[fill->stage];
    const mtp_draft_token *draft = &schedule->drafts[fill->draft];
    *output = draft->output;
    return &schedule->stages[draft->stage];
}

/* Whether a row can have what its fill says. */
static int can_fill(const mtp_schedule *schedule, const mtp_stage *stage, const mtp_fill *fill)
{
    int64_t output;
    if (fill->draft != MTP_KNOWN) {
        const int32_t token = schedule->drafts[fill->draft].token;
        if (token < 0 || (stage->repeats == 0 && !has_embedding(schedule, token)))
            return 0;
    }
    mtp_stage *source = source_of(schedule, fill, &output);
    return !source || (source->at[output] >= 0 && feeds_are_finite(source, output, stage));
}

/* Say which rows of a stage are dead. */
static void find_dead(const mtp_schedule *schedule, const mtp_stage *stage)
{
    const mtp_fill *fill = stage->fills, *end = fill + stage->n_fills;
    for (int64_t row = 0; row < stage->n_rows; row++) {
        const int32_t before = stage->before[row];
        int is_dead = before >= 0 && schedule->is_dead[before];
        if (fill < end && fill->row == row) {
            is_dead |= !can_fill(schedule, stage, fill);
            fill++;
        }
        schedule->is_dead[row] = is_dead;
    }
}

/* Say which drafts the stage may choose; returns how many. */
static int64_t open_picks(const mtp_schedule *schedule, const mtp_stage *stage)
{
    int64_t n = 0;
    for (int64_t i = 0; i < schedule->n_drafts; i++)
        schedule->drafts[i].is_open = -1; /* not of this stage */
    for (int64_t i = 0; i < stage->n_picks; i++) {
        const mtp_pick *pick = &stage->picks[i];
        mtp_draft_token *draft = &schedule->drafts[pick->draft];
        int is_open = 1;
        if (draft->parent >= 0) {
            const mtp_draft_token *parent = &schedule->drafts[draft->parent];
            is_open = parent->is_open >= 0 ? parent->is_open : parent->token >= 0;
        }
        is_open &= stage->repeats == 0 || draft->token >= 0;
        is_open &= stage->is_given || !schedule->is_dead[stage->outputs[pick->output]];
        draft->is_open = is_open;
        n += is_open;
    }
    return n;
}

/* Whether no row of a stage is left out. */
static int runs_all(const mtp_stage *stage)
{
    return stage->runs_whole || stage->n_picks == 0 || stage->n_fills == 0;
}

/* Say where each row of a stage that has to run is among these, -1 of others; returns how many.
 * These are all, or those that an output sees from which a draft is chosen. */
static int64_t find_rows(const mtp_schedule *schedule, const mtp_stage *stage)
{
    int32_t *at = schedule->row_at;
    int64_t n = 0;
    for (int64_t row = 0; row < stage->n_rows; row++)
        at[row] = runs_all(stage) ? 0 : -1;
    for (int64_t i = 0; i < stage->n_picks; i++) {
        if (!schedule->drafts[stage->picks[i].draft].is_open)
            continue;
        int32_t row = stage->outputs[stage->picks[i].output];
        for (; row >= 0 && at[row] < 0; row = stage->before[row])
            at[row] = 0;
    }
    for (int64_t row = 0; row < stage->n_rows; row++)
        if (at[row] == 0)
            at[row] = (int32_t)n++;
    return n;
}

/* Write the slots of a row. */
static void fill_slots(const mtp_schedule *schedule, const mtp_stage *stage, const mtp_fill *fill,
                       int64_t row, int64_t to)
{
    int64_t output;
    mtp_stage *source = fill ? source_of(schedule, fill, &output) : NULL;
    for (int64_t i = 0; i < stage->n_slots; i++) {
        const mtp_slot *slot = &stage->slots[i];
        if (slot->given)
            memcpy(slot->rows + to * slot->width, slot->given + row * slot->width,
                   (size_t)slot->width * sizeof(float));
    }
    if (!source || source->at[output] < 0)
        return;
    for (int64_t i = 0; i < stage->n_feeds; i++) {
        const mtp_feed *feed = &stage->feeds[i];
        const mtp_slot *slot = &stage->slots[feed->slot];
        memcpy(slot->rows + to * slot->width + feed->column, made(source, output, feed->name),
               (size_t)source->made[feed->name].width * sizeof(float));
    }
}

/* The token of a row. */
static int32_t token_of(const mtp_schedule *schedule, const mtp_stage *stage, const mtp_fill *fill,
                        int64_t row)
{
    if (!fill || fill->draft == MTP_KNOWN || schedule->drafts[fill->draft].token < 0)
        return stage->tokens[row];
    const int32_t token = schedule->drafts[fill->draft].token;
    return has_embedding(schedule, token) ? token : 0;
}

/* Write the rows that have to run. */
static void write_rows(mtp_schedule *schedule, mtp_stage *stage, int64_t n)
{
    const mtp_fill *next = stage->fills, *end = next + stage->n_fills;
    const int are_the_same = stage->n_composed == n; /* but for tokens: rows never come back */
    const int64_t n_axes = stage->n_axes;
    for (int64_t row = 0; row < stage->n_rows; row++) {
        const mtp_fill *fill = next < end && next->row == row ? next++ : NULL;
        const int64_t to = schedule->row_at[row];
        if (to < 0)
            continue;
        schedule->tokens[to] = token_of(schedule, stage, fill, row);
        if (are_the_same)
            continue;
        schedule->seq[to] = stage->seq[row];
        schedule->place[to] = stage->place[row];
        if (stage->until)
            schedule->until[to] = stage->until[row];
        memcpy(schedule->positions + to * n_axes, stage->positions + row * n_axes,
               (size_t)n_axes * sizeof(int32_t));
        fill_slots(schedule, stage, fill, row, to);
    }
    stage->n_composed = n;
}

/* Point the run at the rows that have to run, and note where outputs are among them. */
static void compose(mtp_schedule *schedule, mtp_stage *stage)
{
    mtp_run *run = stage->run;
    const int64_t n = find_rows(schedule, stage);
    int64_t m = 0;
    write_rows(schedule, stage, n);
    for (int64_t i = 0; i < stage->n_outputs; i++)
        stage->at[i] = runs_all(stage) ? 0 : -1;
    for (int64_t i = 0; i < stage->n_picks; i++)
        if (schedule->drafts[stage->picks[i].draft].is_open)
            stage->at[stage->picks[i].output] = 0;
    for (int64_t i = 0; i < stage->n_outputs; i++) {
        if (stage->at[i] < 0)
            continue;
        stage->row[i] = schedule->row_at[stage->outputs[i]];
        schedule->outputs[m] = stage->row[i];
        stage->at[i] = (int32_t)m++;
    }
    run->n_rows[MTP_TOKENS] = n;
    run->n_rows[MTP_OUTPUTS] = m;
    run->n_axes = stage->n_axes;
    run->tokens = schedule->tokens;
    run->seq = schedule->seq;
    run->place = schedule->place;
    run->positions = schedule->positions;
    run->outputs = schedule->outputs;
    run->parent = NULL;
    run->until = stage->until ? schedule->until : NULL;
    for (int64_t i = 0; i < stage->n_slots; i++)
        run->buffers[stage->slots[i].buffer] = stage->slots[i].rows;
}

/* Where the stage writes row `at` of its logits. */
static float *logits_of(const mtp_schedule *schedule, const mtp_stage *stage, int64_t at)
{
    return (float *)stage->run->buffers[stage->sampling.logits] + at * schedule->n_logits;
}

/* Say who chooses from each row of logits. */
static void set_samplers(loop *self, mtp_stage *stage)
{
    const mtp_schedule *schedule = self->schedule;
    mtp_fused_sampling *sampling = &stage->sampling;
    sampling->n = stage->run->n_rows[MTP_OUTPUTS];
    self->n_written = 0;
    for (int64_t at = 0; at < sampling->n; at++)
        sampling->samplers[at] = (mtp_row_sampler){0};
    for (int64_t i = 0; i < stage->n_picks; i++) {
        const mtp_pick *pick = &stage->picks[i];
        const mtp_draft_token *draft = &schedule->drafts[pick->draft];
        const int64_t at = stage->at[pick->output];
        if (!draft->is_open)
            continue;
        const mtp_text *text = &schedule->texts[draft->text];
        if (text->can_fuse && stage->can_fuse) {
            sampling->samplers[at] =
                (mtp_row_sampler){text->settings, text->index + draft->depth, NULL};
        } else {
            sampling->samplers[at].logits = logits_of(schedule, stage, at);
            self->n_written++;
        }
    }
    stage->run->epilogue = stage->can_fuse ? mtp_sampling_epilogue(sampling) : (mtp_epilogue){0};
}

/* Let a stage choose none of its drafts. */
static void choose_none(const mtp_schedule *schedule, const mtp_stage *stage)
{
    for (int64_t i = 0; i < stage->n_picks; i++)
        schedule->drafts[stage->picks[i].draft].token = -1;
}

/* Begin with this stage, or the first one behind it that has something to do. */
static void begin(loop *self, mtp_stage *stage)
{
    mtp_schedule *schedule = self->schedule;
    const mtp_stage *end = schedule->stages + schedule->n_stages;
    if (stage != self->stage)
        self->n_runs = 0;
    for (; stage < end; stage++, self->n_runs = 0) {
        if (self->n_runs == 0)
            forget_finite(schedule);
        if (!stage->is_given)
            find_dead(schedule, stage);
        if (open_picks(schedule, stage) == 0 && stage->n_picks > 0) {
            choose_none(schedule, stage);
            continue;
        }
        if (!stage->is_given)
            compose(schedule, stage);
        set_samplers(self, stage);
        self->stage = stage;
        self->n_runs++;
        self->n_changed = 0;
        stage->has_run = 1;
        mtp_run_begin(stage->run);
        return;
    }
    self->stage = NULL;
}

/* -- after it ran ---------------------------------------------------------------------------- */

/* Note what a stage made, where its plan runs again before that is read. */
static void keep(const mtp_schedule *schedule, const mtp_stage *stage)
{
    for (int64_t output = 0; stage->kept && output < stage->n_outputs; output++) {
        for (int64_t i = 0; stage->at[output] >= 0 && i < schedule->n_names; i++) {
            const mtp_made *own = &stage->made[i];
            if (own->buffer < 0)
                continue;
            const int64_t row = own->axis == MTP_OUTPUTS ? stage->at[output] : stage->row[output];
            memcpy(stage->kept + output * stage->kept_width + own->column,
                   (const float *)stage->run->buffers[own->buffer] + row * own->width,
                   (size_t)own->width * sizeof(float));
        }
    }
}

/* Whether a draft is not to be chosen, as the one before it is none. */
static int is_cut_off(const mtp_schedule *schedule, const mtp_draft_token *draft)
{
    return draft->parent >= 0 && schedule->drafts[draft->parent].token < 0;
}

/* Write the drafts before one behind its text; returns the text's length. */
static int64_t write_text(const mtp_schedule *schedule, const mtp_draft_token *draft)
{
    const mtp_text *text = &schedule->texts[draft->text];
    int32_t *to = text->history + text->n_history;
    for (int32_t at = draft->parent; at >= 0; at = schedule->drafts[at].parent)
        to[schedule->drafts[at].depth] = schedule->drafts[at].token;
    return text->n_history + draft->depth;
}

/* Note a draft, or that there is none. */
static void note(loop *self, mtp_draft_token *draft, int32_t token, const mtp_pick *pick)
{
    const int32_t chosen = token == MTP_NO_TOKEN ? -1 : token;
    self->n_changed += draft->token != chosen;
    draft->token = chosen;
    draft->stage = (int32_t)(self->stage - self->schedule->stages);
    draft->output = pick->output;
}

/* Choose a draft from logits that were written, all threads together; thread 0 notes the token, and
 * how probable it is where that is asked for, which takes a sum over all exponentials. */
static void choose(loop *self, const mtp_stage *stage, const mtp_pick *pick, int thread,
                   int n_threads)
{
    const int n = n_threads < MTP_CHOICE_PARTS ? n_threads : MTP_CHOICE_PARTS;
    const mtp_schedule *schedule = self->schedule;
    mtp_draft_token *draft = &schedule->drafts[pick->draft];
    const mtp_text *text = &schedule->texts[draft->text];
    mtp_sampler_scratch *scratch = text->scratch;
    if (thread == 0) {
        const float *logits = logits_of(schedule, stage, stage->at[pick->output]);
        self->is_over = is_cut_off(schedule, draft) ||
                        (stage->ends_at_nan && has_nan(logits, schedule->n_logits));
        if (!self->is_over)
            mtp_choice_begin(scratch, logits, schedule->n_logits, text->settings, text->history,
                             write_text(schedule, draft), text->n_prompt,
                             text->index + draft->depth, stage->sampling.token_ids,
                             text->p_min > 0.0);
    }
    wait_for_all(stage, n_threads);
    if (thread < n && !self->is_over)
        mtp_choice_scan(scratch, thread, n);
    wait_for_all(stage, n_threads);
    if (thread < n && !self->is_over)
        mtp_choice_search(scratch, thread, n);
    wait_for_all(stage, n_threads);
    if (thread == 0) {
        float *probability = text->p_min > 0.0 ? &draft->probability : NULL;
        int32_t token = MTP_NO_TOKEN;
        if (!self->is_over)
            token = mtp_choice_end(scratch, n, probability);
        if (probability && !draft->is_anew && *probability < text->p_min)
            token = MTP_NO_TOKEN;
        note(self, draft, token, pick);
    }
}

/* Choose from the rows of logits that were written. Behind the last of them a thread looks at none:
 * thread 0 may write there already. */
static void choose_all(loop *self, const mtp_stage *stage, int64_t n_written, int thread,
                       int n_threads)
{
    const int n_choosing = self->shares ? n_threads : 1;
    if (thread >= n_choosing)
        return;
    for (int64_t i = 0; n_written > 0; i++) {
        const mtp_pick *pick = &stage->picks[i];
        const int64_t at = stage->at[pick->output];
        if (at >= 0 && stage->sampling.samplers[at].logits) {
            choose(self, stage, pick, thread, n_choosing);
            n_written--;
        }
    }
}

/* Note what was chosen while logits were made, and begin the next stage: by thread 0, while the
 * others wait. */
static void go_on(loop *self, mtp_stage *stage, int n_threads)
{
    const mtp_schedule *schedule = self->schedule;
    keep(schedule, stage);
    for (int64_t i = 0; i < stage->n_picks; i++) {
        const mtp_pick *pick = &stage->picks[i];
        mtp_draft_token *draft = &schedule->drafts[pick->draft];
        const int64_t at = stage->at[pick->output];
        if (!draft->is_open)
            note(self, draft, MTP_NO_TOKEN, pick);
        else if (stage->sampling.samplers[at].settings)
            note(self, draft,
                 is_cut_off(schedule, draft) ? MTP_NO_TOKEN
                                             : mtp_sampling_end(&stage->sampling, at, n_threads),
                 pick);
    }
    const int goes_on = self->n_changed > 0 && self->n_runs < stage->repeats;
    begin(self, goes_on ? stage : stage + 1);
}

static void run_as_task(void *argument, int thread, int n_threads)
{
    loop *self = argument;
    do {
        mtp_stage *stage = self->stage;
        const int64_t n_written = self->n_written;
        mtp_sampling_begin(&stage->sampling, thread);
        mtp_plan_walk(stage->plan, stage->run, stage->plan->pool, thread, n_threads);
        wait_for_all(stage, n_threads);
        if (mtp_was_interrupted(stage->run->interrupt))
            return;
        choose_all(self, stage, n_written, thread, n_threads);
        if (thread == 0)
            go_on(self, stage, n_threads);
        wait_for_all(stage, n_threads);
    } while (self->stage);
}

/* Leave out drafts that are not probable enough, and those behind none, or behind one that no stage
 * can read. */
static void end_drafts(const mtp_schedule *schedule)
{
    for (int64_t i = 0; i < schedule->n_drafts; i++) {
        mtp_draft_token *draft = &schedule->drafts[i];
        const double p_min = schedule->texts[draft->text].p_min;
        if (draft->is_anew && p_min > 0.0 && draft->probability < p_min)
            draft->token = -1;
        if (is_cut_off(schedule, draft) ||
            (draft->parent >= 0 && !has_embedding(schedule, schedule->drafts[draft->parent].token)))
            draft->token = -1;
    }
}

void mtp_schedule_run(mtp_schedule *schedule)
{
    loop self = {.schedule = schedule};
    find_fused(schedule);
    self.shares = is_worth_sharing(schedule);
    begin(&self, schedule->stages);
    if (self.stage)
        mtp_plan_start(self.stage->plan, self.stage->run, run_as_task, &self);
    end_drafts(schedule);
    for (int64_t s = 0; s < schedule->n_stages; s++)
        schedule->stages[s].run->epilogue = (mtp_epilogue){0};
}
