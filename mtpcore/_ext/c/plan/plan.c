#include "plan/plan.h"

#include "core/clock.h"
#include "core/cpu.h"

static const mtp_operation *const operations[MTP_ISA_COUNT] = {
    [MTP_ISA_BASE] = mtp_operations_portable,
#if defined(__x86_64__)
    [MTP_ISA_AVX2] = mtp_operations_avx2,     [MTP_ISA_AVXVNNI] = mtp_operations_avx2,
    [MTP_ISA_AVX512] = mtp_operations_avx512, [MTP_ISA_AMX] = mtp_operations_avx512,
#elif defined(__aarch64__)
    [MTP_ISA_NEON] = mtp_operations_neon,
    [MTP_ISA_I8MM] = mtp_operations_neon,
#endif
};

#define NAME(_, name, ...) #name,
static const char *const names[MTP_KINDS] = {MTP_OPERATIONS(NAME)};
#define SHARING(_, name, sharing) #sharing,
static const char *const sharings[MTP_KINDS] = {MTP_OPERATIONS(SHARING)};

const char *mtp_kind_name(mtp_kind kind) { return names[kind]; }

const char *mtp_kind_sharing(mtp_kind kind) { return sharings[kind]; }

/* Tie row t to those of its sequence that came before. Rows of one sequence come in the order of
 * their places, so the first has the lowest. */
static void join_sequence(mtp_run *run, int64_t t)
{
    int64_t row = t - 1;
    while (row >= 0 && run->seq[row] != run->seq[t])
        row--;
    run->next[t] = -1;
    run->before[t] = run->parent ? run->parent[t] : (int32_t)row;
    run->base[t] = row < 0 ? run->place[t] : run->base[row];
    if (row < 0)
        run->first_rows[run->n_sequences++] = (int32_t)t;
    else
        run->next[row] = (int32_t)t;
}

static void choose_fetches(mtp_run *run)
{
    mtp_fetch_result result;
    run->fetch_way = mtp_fetch() == MTP_FETCH_AUTO ? MTP_FETCH_NONE : mtp_fetch();
    for (mtp_fetch_choice *choice = run->fetch; choice < run->fetch + run->n_fetch; choice++)
        if (mtp_fetch_choice_next(choice, mtp_fetch(), &result))
            mtp_fetch_remember(choice->type, choice->rows, &result);
}

void mtp_run_begin(mtp_run *run)
{
    choose_fetches(run);
    const int64_t n = run->n_rows[MTP_TOKENS];
    run->n_tiles = run->n_sequences = 0;
    for (int64_t t = 0; t < n; t++) {
        const int32_t parent = run->parent ? run->parent[t] : -1;
        join_sequence(run, t);
        run->depth[t] = run->parent == NULL ? run->place[t] - run->base[t]
                                            : (parent < 0 ? 0 : run->depth[parent] + 1);
        run->is_tree[t] =
            run->place[t] != run->base[t] + run->depth[t] || (parent >= 0 && run->is_tree[parent]);
        if (t == 0 || run->seq[t] != run->seq[t - 1] ||
            t - run->tiles[run->n_tiles - 1] == MTP_QUERY_ROWS)
            run->tiles[run->n_tiles++] = (int32_t)t;
    }
    run->tiles[run->n_tiles] = (int32_t)n;
}

/* A page of keys and values, and for each query its weights, its sums, its codes and a record. */
static size_t attention_bytes(int64_t k_width, int64_t v_width, int64_t n_queries)
{
    const int64_t in_width = (k_width + 15) / 16 * 16, out_width = (v_width + 15) / 16 * 16;
    const int64_t of_query = MTP_PAGE + 2 * out_width;
    const int64_t values = (in_width + out_width) * MTP_PAGE + n_queries * of_query;
    return (size_t)(values * 4 + n_queries * (mtp_query_code_bytes(k_width) + 128));
}

/* Experts' matrices are alike, but some may be packed by now. */
static size_t expert_bytes(const mtp_op *op)
{
    size_t most = 0;
    for (int64_t e = 0; e < op->n[0]; e++) {
        const size_t bytes = mtp_matmul_scratch_bytes(&op->matrices[e]);
        most = bytes > most ? bytes : most;
    }
    return most;
}

size_t mtp_scratch_bytes(const mtp_op *op)
{
    const int64_t shared = op->kind == MTP_ATTENTION ? op->in[0].n_heads / op->n[2] : 0;
    switch (op->kind) {
    case MTP_ATTENTION:
        return attention_bytes(op->in[0].width, op->out[0].width, mtp_most_queries(shared));
    case MTP_DELTA_RULE: /* two states of a block, and its factors */
        return (size_t)op->in[1].width * 48 * sizeof(float);
    case MTP_ROUTE:
        return (size_t)op->in[0].width * 14;
    case MTP_EMBED_CODES: /* a row of the matrix */
        return (size_t)op->out[0].width * sizeof(float);
    case MTP_MATMUL:
        return mtp_matmul_scratch_bytes(op->matrices);
    case MTP_EXPERT_MATMUL:
        return expert_bytes(op);
    default:
        return 0;
    }
}

/* Estimated nanoseconds of one thread. */
static double work_of(const mtp_plan *plan, const mtp_run *run)
{
    return plan->work + plan->work_of_row * (double)run->n_rows[MTP_TOKENS];
}

/* Less work in nanoseconds is over before anybody could be asked. */
static const double WORTH_ASKING = 5e6;

/* The run as this thread sees it: with its own copies of what is computed in copies. */
static mtp_run run_of_thread(const mtp_plan *plan, const mtp_run *run, int thread)
{
    mtp_run seen = *run;
    if (work_of(plan, run) < WORTH_ASKING)
        seen.interrupt = NULL;
    if (thread > 0 && mtp_is_few(run)) {
        seen.buffers = run->buffers_seen + thread * plan->n_buffers;
        for (int64_t b = 0; b < plan->n_buffers; b++)
            seen.buffers[b] = (char *)run->buffers[b] + (size_t)thread * plan->copy_bytes[b];
    }
    return seen;
}

void mtp_plan_walk(const mtp_plan *plan, const mtp_run *run, mtp_pool *pool, int thread,
                   int n_threads)
{
    const mtp_operation *table = operations[mtp_isa()];
    const int barrier = mtp_is_few(run) ? MTP_BARRIER_IF_FEW : MTP_BARRIER_IF_MANY;
    const mtp_run seen = run_of_thread(plan, run, thread);
    for (int64_t i = 0; i < plan->n_ops; i++) {
        const mtp_op *op = &plan->ops[i];
        if (n_threads > 1 && op->barrier & barrier)
            mtp_pool_wait(pool);
        if (seen.interrupt && mtp_interrupt_skips(seen.interrupt, i))
            continue;
        table[op->kind](op, &seen, thread, n_threads);
    }
}

typedef struct {
    const mtp_plan *plan;
    const mtp_run *run;
} walk;

static void walk_as_task(void *argument, int thread, int n_threads)
{
    const walk *self = argument;
    mtp_plan_walk(self->plan, self->run, self->plan->pool, thread, n_threads);
}

/* Estimated nanoseconds of what takes so long that nobody tries it on one thread. */
static const double SURELY_SHARED = 1e8;

void mtp_plan_start(const mtp_plan *plan, mtp_run *run, mtp_task task, void *argument,
                    const int64_t *n_walks)
{
    const double work = work_of(plan, run);
    if (plan->n_threads == 1 || work < plan->worth_sharing) {
        mtp_run_alone(task, argument);
        return;
    }
    if (plan->worth_sharing == 0 || work > SURELY_SHARED) {
        mtp_pool_run(plan->pool, task, argument);
        return;
    }
    const mtp_way way = mtp_next_way(&run->paces);
    const int64_t begin = mtp_now_ns();
    if (way == MTP_SHARED)
        mtp_pool_run(plan->pool, task, argument);
    else
        mtp_run_alone(task, argument);
    mtp_note_pace(&run->paces, way, (double)(mtp_now_ns() - begin) / (work * (double)*n_walks));
}

void mtp_plan_run(const mtp_plan *plan, mtp_run *run)
{
    mtp_run_begin(run);
    walk self = {plan, run};
    const int64_t once = 1;
    mtp_plan_start(plan, run, walk_as_task, &self, &once);
}
