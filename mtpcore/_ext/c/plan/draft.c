#include "plan/draft.h"

#include <float.h>
#include <math.h>
#include <string.h>

typedef struct {
    mtp_schedule *schedule;
    int shares; /* whether all threads choose together from logits that were written */
    /* Written by thread 0 while the others wait, as are the schedule and its stages: */
    mtp_stage *stage; /* NULL: all have run */
    /* The first picks of the stage, up to the last one that reads written logits, and up to the last
     * one that all threads choose together. */
    int64_t n_written, n_together;
    int64_t n_runs;    /* how often it ran */
    int64_t n_walks;   /* how often any stage ran */
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
        stage->can_fuse = has_fused && stage->n_picks > 0 && !schedule->keeps_logits &&
                          mtp_plan_n_logits(stage->plan, stage->sampling.logits) > 0;
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

/* -- rows --------------------------------------------------------------------------------------- */

int64_t mtp_row_before(const mtp_rows *rows, int64_t row)
{
    const int32_t seq = rows->seq[row];
    do
        row--;
    while (row >= 0 && rows->seq[row] != seq);
    return row;
}

/* Say of the fills of given rows which rows these are. */
static int64_t find_given(mtp_stage *stage)
{
    const mtp_rows *rows = &stage->rows;
    int64_t before = -1;
    stage->n_fills = 0;
    for (int64_t i = 0; i < stage->n_told; i++) {
        mtp_fill *fill = &stage->fills[stage->n_fills];
        const int32_t output = rows->outputs[stage->told[i].output];
        const int64_t row = (int64_t)output + stage->told[i].ahead;
        if (row < 0 || row >= rows->n || rows->seq[row] != rows->seq[output])
            continue;
        if (row <= before)
            return i;
        before = row;
        *fill = stage->told[i];
        fill->row = (int32_t)row;
        stage->n_fills++;
    }
    return -1;
}

/* A sum that is below 0 where it is too large: the executor refuses such a place. */
static int32_t add(int32_t at, int32_t ahead) { return (int32_t)((uint32_t)at + (uint32_t)ahead); }

int64_t mtp_stage_place(mtp_stage *stage)
{
    const mtp_rows *given = stage->given;
    mtp_rows *rows = &stage->rows;
    if (stage->form == MTP_GIVEN) {
        *rows = *given;
        return find_given(stage);
    }
    rows->n_axes = given->n_axes;
    for (int64_t row = 0; row < rows->n; row++) {
        const mtp_fill *fill = &stage->fills[row];
        const int32_t output = given->outputs[fill->output];
        rows->tokens[row] = fill->draft == MTP_KNOWN ? given->tokens[output] : 0;
        rows->seq[row] = given->seq[output];
        const int64_t before = mtp_row_before(rows, row);
        rows->place[row] = add(given->place[output], fill->ahead);
        if (stage->form == MTP_TREE)
            rows->place[row] = add(before < 0 ? given->place[output] : rows->place[before], 1);
        for (int64_t axis = 0; axis < rows->n_axes; axis++)
            rows->positions[row * rows->n_axes + axis] =
                add(given->positions[output * rows->n_axes + axis], fill->ahead);
        rows->outputs[row] = (int32_t)row;
        rows->parent[row] = -1;
        rows->before[row] = stage->form == MTP_TREE ? -1 : (int32_t)before;
    }
    return -1;
}

void mtp_run_take(mtp_run *run, const mtp_rows *rows, int64_t n, int64_t n_outputs)
{
    run->n_rows[MTP_TOKENS] = n;
    run->n_rows[MTP_OUTPUTS] = n_outputs;
    run->n_axes = rows->n_axes;
    run->tokens = rows->tokens;
    run->seq = rows->seq;
    run->place = rows->place;
    run->positions = rows->positions;
    run->outputs = rows->outputs;
    run->parent = rows->is_tree ? rows->parent : NULL;
    run->until = rows->has_spans ? rows->until : NULL;
}

/* -- before a stage runs --------------------------------------------------------------------- */

static int has_embedding(const mtp_schedule *schedule, int32_t token)
{
    return schedule->n_tokens == 0 || token < schedule->n_tokens;
}

/* The output that feeds the slots of a fill's row. */
static int32_t output_of(const mtp_schedule *schedule, const mtp_fill *fill)
{
    return fill->source == MTP_OF_DRAFT ? schedule->drafts[fill->draft].output : fill->source;
}

/* Whether a row can have what its fill says. */
static int can_fill(const mtp_schedule *schedule, const mtp_stage *stage, const mtp_fill *fill)
{
    if (fill->draft != MTP_KNOWN) {
        const int32_t token = schedule->drafts[fill->draft].token;
        if (token < 0 || (stage->repeats == 0 && !has_embedding(schedule, token)))
            return 0;
    }
    if (fill->stage == MTP_KNOWN)
        return 1;
    const mtp_stage *source = &schedule->stages[fill->stage];
    const int32_t output = output_of(schedule, fill);
    int can = source->at[output] >= 0;
    for (int64_t i = 0; can && i < stage->n_slots; i++)
        if (stage->slots[i].kind >= 0)
            can &= source->kept[stage->slots[i].kind].is_finite[output];
    return can;
}

/* Say which row each row of a tree comes after, with the drafts that they get. */
static void link_tree(const mtp_schedule *schedule, const mtp_stage *stage)
{
    int32_t *row_of = schedule->row_of;
    for (int64_t i = 0; i < stage->n_fills; i++)
        if (stage->fills[i].draft != MTP_KNOWN)
            row_of[stage->fills[i].draft] = stage->fills[i].row;
    memcpy(stage->rows.before, stage->rows.parent, (size_t)stage->rows.n * sizeof(int32_t));
    for (int64_t i = 0; i < stage->n_fills; i++) {
        const mtp_fill *fill = &stage->fills[i];
        if (fill->draft == MTP_KNOWN)
            continue;
        const int32_t parent = schedule->drafts[fill->draft].parent;
        if (parent >= 0 && row_of[parent] >= 0)
            stage->rows.before[fill->row] = row_of[parent];
    }
    for (int64_t i = 0; i < stage->n_fills; i++)
        if (stage->fills[i].draft != MTP_KNOWN)
            row_of[stage->fills[i].draft] = -1;
}

/* Say which rows of a stage are dead. */
static void find_dead(const mtp_schedule *schedule, const mtp_stage *stage)
{
    const mtp_fill *fill = stage->fills, *end = fill + stage->n_fills;
    if (stage->rows.is_tree)
        link_tree(schedule, stage);
    for (int64_t row = 0; row < stage->rows.n; row++) {
        const int32_t before = stage->rows.before[row];
        int is_dead = before >= 0 && schedule->is_dead[before];
        if (fill < end && fill->row == row) {
            is_dead |= !can_fill(schedule, stage, fill);
            fill++;
        }
        schedule->is_dead[row] = is_dead;
    }
}

static int is_found_by(const mtp_schedule *schedule, const mtp_best *best, const mtp_stage *stage)
{
    return schedule->stages + best->stage == stage;
}

/* Say which drafts the stage may choose; returns how many. */
static int64_t open_picks(const mtp_schedule *schedule, const mtp_stage *stage)
{
    int64_t n = 0;
    for (int64_t i = 0; i < schedule->n_drafts; i++)
        schedule->drafts[i].is_open = -1; /* not of this stage */
    for (int64_t i = schedule->n_found; i < schedule->n_bests; i++) {
        const mtp_best *best = &schedule->bests[i];
        for (int64_t j = 0; j < best->n_drafts && is_found_by(schedule, best, stage); j++)
            schedule->drafts[best->drafts[j]].is_open = 1; /* as far as is known */
    }
    for (int64_t i = 0; i < stage->n_picks; i++) {
        const mtp_pick *pick = &stage->picks[i];
        mtp_draft_token *draft = &schedule->drafts[pick->draft];
        int is_open = 1;
        if (draft->parent >= 0) {
            const mtp_draft_token *parent = &schedule->drafts[draft->parent];
            is_open = parent->is_open >= 0 ? parent->is_open : parent->token >= 0;
        }
        is_open &= stage->repeats == 0 || draft->token >= 0;
        is_open &= !schedule->is_dead[stage->rows.outputs[pick->output]];
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
    for (int64_t row = 0; row < stage->rows.n; row++)
        at[row] = runs_all(stage) ? 0 : -1;
    for (int64_t i = 0; i < stage->n_picks; i++) {
        if (!schedule->drafts[stage->picks[i].draft].is_open)
            continue;
        int32_t row = stage->rows.outputs[stage->picks[i].output];
        for (; row >= 0 && at[row] < 0; row = stage->rows.before[row])
            at[row] = 0;
    }
    for (int64_t row = 0; row < stage->rows.n; row++)
        if (at[row] == 0)
            at[row] = (int32_t)n++;
    return n;
}

/* The place of row `to` of the run, in a tree: they take those of their sequence one after the other.
 */
static int32_t next_place(const mtp_schedule *schedule, const mtp_stage *stage, int64_t row,
                          int64_t to)
{
    const int64_t before = mtp_row_before(&schedule->rows, to);
    if (before >= 0)
        return schedule->rows.place[before] + 1;
    for (int64_t first = row; first >= 0; first = mtp_row_before(&stage->rows, first))
        row = first;
    return stage->rows.place[row];
}

/* Write the slots of a row, which becomes row `to` of the run. */
static void fill_slots(const mtp_schedule *schedule, const mtp_stage *stage, const mtp_fill *fill,
                       int64_t row, int64_t to)
{
    if (stage->form != MTP_GIVEN)
        row = stage->given->outputs[fill->output];
    for (int64_t i = 0; i < stage->n_slots; i++) {
        const mtp_slot *slot = &stage->slots[i];
        const float *from = slot->given ? slot->given + row * slot->width : NULL;
        if (fill && fill->stage != MTP_KNOWN && slot->kind >= 0) {
            const mtp_kept *kept = &schedule->stages[fill->stage].kept[slot->kind];
            from = kept->rows + output_of(schedule, fill) * slot->width;
        }
        if (slot->rows && from)
            memcpy(slot->rows + to * slot->width, from, (size_t)slot->width * sizeof(float));
    }
}

/* The token of a row. */
static int32_t token_of(const mtp_schedule *schedule, const mtp_stage *stage, const mtp_fill *fill,
                        int64_t row)
{
    if (!fill || fill->draft == MTP_KNOWN || schedule->drafts[fill->draft].token < 0)
        return stage->rows.tokens[row];
    const int32_t token = schedule->drafts[fill->draft].token;
    return has_embedding(schedule, token) ? token : 0;
}

/* Write the rows that have to run. */
static void write_rows(const mtp_schedule *schedule, const mtp_stage *stage)
{
    const mtp_fill *next = stage->fills, *end = next + stage->n_fills;
    const int64_t n_axes = stage->rows.n_axes;
    for (int64_t row = 0; row < stage->rows.n; row++) {
        const mtp_fill *fill = next < end && next->row == row ? next++ : NULL;
        const int64_t to = schedule->row_at[row];
        if (to < 0)
            continue;
        const int32_t before = stage->rows.before[row];
        schedule->rows.tokens[to] = token_of(schedule, stage, fill, row);
        schedule->rows.seq[to] = stage->rows.seq[row];
        schedule->rows.place[to] =
            stage->rows.is_tree ? next_place(schedule, stage, row, to) : stage->rows.place[row];
        schedule->rows.parent[to] = before < 0 ? -1 : schedule->row_at[before];
        if (stage->rows.has_spans)
            schedule->rows.until[to] = stage->rows.until[row];
        memcpy(schedule->rows.positions + to * n_axes, stage->rows.positions + row * n_axes,
               (size_t)n_axes * sizeof(int32_t));
        fill_slots(schedule, stage, fill, row, to);
    }
}

/* Point the run at the rows that have to run, and note where outputs are among them. */
static void compose(const mtp_schedule *schedule, const mtp_stage *stage)
{
    mtp_run *run = stage->run;
    mtp_rows rows = schedule->rows;
    const int64_t n = find_rows(schedule, stage);
    int64_t m = 0;
    rows.is_tree = stage->rows.is_tree;
    rows.has_spans = stage->rows.has_spans;
    rows.n_axes = stage->rows.n_axes;
    write_rows(schedule, stage);
    for (int64_t i = 0; i < stage->rows.n_outputs; i++)
        stage->at[i] = runs_all(stage) ? 0 : -1;
    for (int64_t i = 0; i < stage->n_picks; i++)
        if (schedule->drafts[stage->picks[i].draft].is_open)
            stage->at[stage->picks[i].output] = 0;
    for (int64_t i = 0; i < stage->rows.n_outputs; i++) {
        if (stage->at[i] < 0)
            continue;
        schedule->rows.outputs[m] = schedule->row_at[stage->rows.outputs[i]];
        stage->at[i] = (int32_t)m++;
    }
    mtp_run_take(run, &rows, n, m);
    for (int64_t i = 0; i < stage->n_slots; i++) {
        const mtp_slot *slot = &stage->slots[i];
        run->buffers[slot->buffer] = slot->rows ? (void *)slot->rows : (void *)slot->given;
    }
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
    self->n_written = self->n_together = 0;
    for (int64_t at = 0; at < sampling->n; at++)
        sampling->samplers[at] = (mtp_row_sampler){0};
    for (int64_t i = 0; i < stage->n_picks; i++) {
        const mtp_pick *pick = &stage->picks[i];
        const mtp_draft_token *draft = &schedule->drafts[pick->draft];
        const int64_t at = stage->at[pick->output];
        if (!draft->is_open)
            continue;
        const mtp_text *text = &schedule->texts[draft->text];
        if (text->can_fuse && stage->can_fuse && pick->rank == MTP_CHOICE) {
            sampling->samplers[at] =
                (mtp_row_sampler){text->settings, text->index + draft->depth, NULL};
        } else {
            sampling->samplers[at].logits = logits_of(schedule, stage, at);
            self->n_written = i + 1;
            if (pick->rank == MTP_CHOICE)
                self->n_together = i + 1;
        }
    }
    stage->run->epilogue = stage->can_fuse ? mtp_sampling_epilogue(sampling) : (mtp_epilogue){0};
}

/* Take the best of a best's candidates: each goes in after all that are worth as much. */
static void take_best(const mtp_schedule *schedule, const mtp_best *best)
{
    mtp_draft_token *drafts = schedule->drafts;
    int64_t n = 0;
    for (int64_t i = 0; i < best->n_candidates; i++) {
        const int32_t number = best->candidates[i];
        const mtp_draft_token *candidate = &drafts[number];
        if (candidate->token < 0 || (best->goes_on && !has_embedding(schedule, candidate->token)))
            continue;
        int64_t at = n;
        while (at > 0 && drafts[drafts[best->drafts[at - 1]].best_of].worth < candidate->worth)
            at--;
        if (at == best->n_drafts)
            continue;
        n += n < best->n_drafts;
        for (int64_t j = n - 1; j > at; j--)
            drafts[best->drafts[j]].best_of = drafts[best->drafts[j - 1]].best_of;
        drafts[best->drafts[at]].best_of = number;
    }
    for (int64_t i = 0; i < n; i++) {
        mtp_draft_token *draft = &drafts[best->drafts[i]];
        const mtp_draft_token *candidate = &drafts[draft->best_of];
        draft->parent = candidate->parent;
        draft->token = candidate->token;
        draft->output = candidate->output;
        draft->worth = candidate->worth;
    }
}

/* Find the best drafts whose candidates the stage has chosen with its first `n` picks. */
static void find_best(mtp_schedule *schedule, const mtp_stage *stage, int64_t n)
{
    for (; schedule->n_found < schedule->n_bests; schedule->n_found++) {
        const mtp_best *best = &schedule->bests[schedule->n_found];
        if (!is_found_by(schedule, best, stage) || best->pick >= n)
            return;
        take_best(schedule, best);
    }
}

/* Let a stage choose none of its drafts. */
static void choose_none(mtp_schedule *schedule, const mtp_stage *stage)
{
    for (int64_t i = 0; i < stage->n_picks; i++)
        schedule->drafts[stage->picks[i].draft].token = -1;
    find_best(schedule, stage, stage->n_picks);
}

/* Begin with this stage, or the first one after it that has something to do. */
static void begin(loop *self, mtp_stage *stage)
{
    mtp_schedule *schedule = self->schedule;
    const mtp_stage *end = schedule->stages + schedule->n_stages;
    if (stage != self->stage)
        self->n_runs = 0;
    for (; stage < end; stage++, self->n_runs = 0) {
        find_dead(schedule, stage);
        if (open_picks(schedule, stage) == 0 && stage->n_picks > 0) {
            choose_none(schedule, stage);
            continue;
        }
        compose(schedule, stage);
        set_samplers(self, stage);
        self->stage = stage;
        self->n_runs++;
        self->n_walks++;
        self->n_changed = 0;
        stage->has_run = 1;
        mtp_run_begin(stage->run);
        return;
    }
    self->stage = NULL;
}

/* -- after it ran ---------------------------------------------------------------------------- */

/* Keep the rows of outputs that feed slots of later stages, and whether they are finite. */
static void keep(const mtp_schedule *schedule, const mtp_stage *stage)
{
    for (int64_t kind = 0; kind < schedule->n_kinds; kind++) {
        const mtp_kept *kept = &stage->kept[kind];
        for (int64_t output = 0; kept->rows && output < stage->rows.n_outputs; output++) {
            const int64_t at = stage->at[output];
            float *to = kept->rows + output * kept->width;
            for (int64_t i = 0; at >= 0 && i < kept->n_parts; i++) {
                const mtp_part *part = &kept->parts[i];
                const int64_t row = part->axis == MTP_OUTPUTS ? at : schedule->rows.outputs[at];
                const float *from = (const float *)stage->run->buffers[part->buffer];
                memcpy(to, from + row * part->width, (size_t)part->width * sizeof(float));
                to += part->width;
            }
            kept->is_finite[output] =
                (int8_t)(at >= 0 && are_finite(to - kept->width, kept->width));
        }
    }
}

/* Whether a draft is not to be chosen, as the one before it is none. */
static int is_cut_off(const mtp_schedule *schedule, const mtp_draft_token *draft)
{
    return draft->parent >= 0 && schedule->drafts[draft->parent].token < 0;
}

/* Append to its text the drafts before one; returns the text's length. */
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
    draft->output = pick->output;
    draft->worth = draft->parent >= 0 ? self->schedule->drafts[draft->parent].worth : 1.0;
}

/* Choose the drafts of `n` picks of one output, after one draft, by their ranks. */
static void rank(loop *self, const mtp_stage *stage, const mtp_pick *picks, int64_t n)
{
    const mtp_schedule *schedule = self->schedule;
    const mtp_draft_token *first = &schedule->drafts[picks[0].draft];
    const mtp_text *text = &schedule->texts[first->text];
    const float *logits = logits_of(schedule, stage, stage->at[picks[0].output]);
    int64_t n_ranked = 0;
    for (int64_t i = 0; i < n; i++)
        n_ranked = picks[i].rank >= n_ranked ? picks[i].rank + 1 : n_ranked;
    n_ranked = n_ranked < schedule->n_logits ? n_ranked : schedule->n_logits;
    if (is_cut_off(schedule, first) || (stage->ends_at_nan && has_nan(logits, schedule->n_logits)))
        n_ranked = 0;
    else
        n_ranked = mtp_rank(logits, schedule->n_logits, text->settings, text->history,
                            write_text(schedule, first), text->n_prompt, text->index + first->depth,
                            stage->sampling.token_ids, text->scratch, n_ranked, schedule->ids,
                            schedule->probabilities, schedule->shares);
    for (int64_t i = 0; i < n; i++) {
        mtp_draft_token *draft = &schedule->drafts[picks[i].draft];
        const int64_t at = picks[i].rank;
        const int is_any = at < n_ranked && (double)schedule->probabilities[at] >= text->p_min;
        note(self, draft, is_any ? schedule->ids[at] : MTP_NO_TOKEN, &picks[i]);
        draft->worth *= is_any ? schedule->shares[at] : 0.0;
    }
}

/* How many picks from the i-th on choose from one output, after one draft. */
static int64_t group_of(const mtp_schedule *schedule, const mtp_stage *stage, int64_t i)
{
    const mtp_pick *picks = stage->picks;
    const int32_t parent = schedule->drafts[picks[i].draft].parent;
    int64_t end = i + 1;
    while (end < stage->n_picks && picks[end].output == picks[i].output &&
           schedule->drafts[picks[end].draft].parent == parent)
        end++;
    return end - i;
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

/* Note a draft that was chosen while logits were made. */
static void note_fused(loop *self, const mtp_stage *stage, const mtp_pick *pick, int n_threads)
{
    mtp_draft_token *draft = &self->schedule->drafts[pick->draft];
    const int64_t at = stage->at[pick->output];
    if (draft->is_open && stage->sampling.samplers[at].settings)
        note(self, draft,
             is_cut_off(self->schedule, draft) ? MTP_NO_TOKEN
                                               : mtp_sampling_end(&stage->sampling, at, n_threads),
             pick);
}

/* Choose drafts with the first `n_picks`, each after those before it. After the last of them a thread
 * looks at none: thread 0 may write there already. It ranks alone. */
static void choose_all(loop *self, const mtp_stage *stage, int64_t n_picks, int thread,
                       int n_threads)
{
    const int n_choosing = self->shares ? n_threads : 1;
    int64_t n = 0;
    for (int64_t i = 0; i < n_picks && thread < n_choosing; i += n) {
        const mtp_pick *pick = &stage->picks[i];
        const int64_t at = stage->at[pick->output];
        const int is_written = at >= 0 && stage->sampling.samplers[at].logits;
        const int is_ranked = pick->rank != MTP_CHOICE;
        n = is_ranked ? group_of(self->schedule, stage, i) : 1;
        if (is_written && !is_ranked)
            choose(self, stage, pick, thread, n_choosing);
        else if (thread == 0 && !is_ranked)
            note_fused(self, stage, pick, n_threads);
        else if (thread == 0 && is_written && self->schedule->drafts[pick->draft].is_open)
            rank(self, stage, pick, n);
        if (thread == 0)
            find_best(self->schedule, stage, i + n);
    }
}

/* Note what a stage made, and of which of its drafts is known that they are none. */
static void begin_choosing(loop *self, const mtp_stage *stage)
{
    keep(self->schedule, stage);
    for (int64_t i = 0; i < stage->n_picks; i++) {
        mtp_draft_token *draft = &self->schedule->drafts[stage->picks[i].draft];
        if (!draft->is_open)
            note(self, draft, MTP_NO_TOKEN, &stage->picks[i]);
    }
}

/* Note what else was chosen while logits were made, and begin the next stage: by thread 0, while the
 * others wait. */
static void go_on(loop *self, mtp_stage *stage, int n_threads)
{
    for (int64_t i = self->n_written; i < stage->n_picks; i++)
        note_fused(self, stage, &stage->picks[i], n_threads);
    find_best(self->schedule, stage, stage->n_picks);
    const int goes_on = self->n_changed > 0 && self->n_runs < stage->repeats;
    begin(self, goes_on ? stage : stage + 1);
}

static void run_as_task(void *argument, int thread, int n_threads)
{
    loop *self = argument;
    do {
        mtp_stage *stage = self->stage;
        const int64_t n_picks = thread == 0 ? self->n_written : self->n_together;
        mtp_sampling_begin(&stage->sampling, thread);
        mtp_plan_walk(stage->plan, stage->run, stage->plan->pool, thread, n_threads);
        wait_for_all(stage, n_threads);
        if (mtp_was_interrupted(stage->run->interrupt))
            return;
        if (thread == 0)
            begin_choosing(self, stage);
        choose_all(self, stage, n_picks, thread, n_threads);
        if (thread == 0)
            go_on(self, stage, n_threads);
        wait_for_all(stage, n_threads);
    } while (self->stage);
}

/* Leave out drafts that are not probable enough, and those whose draft before is none, or is one
 * that no stage can read. */
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
        mtp_plan_start(self.stage->plan, self.stage->run, run_as_task, &self, &self.n_walks);
    end_drafts(schedule);
    for (int64_t s = 0; s < schedule->n_stages; s++)
        schedule->stages[s].run->epilogue = (mtp_epilogue){0};
}
