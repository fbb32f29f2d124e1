#include "matmul/packing.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/pages.h"
#include "core/threads.h"
#include "matmul/layout.h"
#include "matmul/pack.h"

/* What a group is; all other values: a thread of the process with this mark is packing it. */
enum { MAPPED, PACKED, FIRST_MARK };

/* Bytes of rows that a thread packs before it looks at the clock. */
enum { PIECE_BYTES = 2 * 1024 * 1024 };

/* Bytes of a file that the system maps together when one of them is read, on their boundaries. */
enum { MAPPED_TOGETHER = 64 * 1024 };

struct mtp_packing {
    mtp_matrix mapped;
    char *packed;
    int64_t offset; /* of the rows in a mapped file, or below 0 */
    _Atomic uint8_t groups[];
};

/* Threads that were packing do not live in a forked child, so there another mark counts. */
static _Atomic uint8_t mark = FIRST_MARK;

static void change_mark(void)
{
    const uint8_t before = atomic_load(&mark);
    atomic_store(&mark, before == UINT8_MAX ? FIRST_MARK : before + 1);
}

__attribute__((constructor)) static void watch_forks(void) { mtp_after_forks(change_mark); }

static int64_t n_groups(const mtp_matrix *w)
{
    return (w->n_rows + MTP_GROUP_ROWS - 1) / MTP_GROUP_ROWS;
}

static int64_t row_bytes(const mtp_matrix *w) { return mtp_row_bytes(w->type, w->n_cols); }

mtp_packing *mtp_packing_new(const mtp_matrix *mapped, void *packed, int64_t offset)
{
    mtp_packing *self = calloc(1, sizeof *self + (size_t)n_groups(mapped));
    if (self == NULL)
        return NULL;
    self->mapped = *mapped;
    self->packed = packed;
    self->offset = offset;
    return self;
}

void mtp_packing_free(mtp_packing *self) { free(self); }

/* There is no count of packed groups beside the marks: a child that is forked between a change of
 * one and of the other would wait for a group that nobody packs. */
static int is_packed(const mtp_packing *self, int64_t group)
{
    return atomic_load_explicit(&self->groups[group], memory_order_acquire) == PACKED;
}

int64_t mtp_packing_left(const mtp_packing *self)
{
    int64_t n = 0;
    for (int64_t group = n_groups(&self->mapped) - 1; group >= 0; group--)
        n += !is_packed(self, group);
    return n;
}

int mtp_packing_is_over(const mtp_packing *self)
{
    for (int64_t group = n_groups(&self->mapped) - 1; group >= 0; group--) /* packed last */
        if (!is_packed(self, group))
            return 0;
    return 1;
}

static char *group_at(const mtp_packing *self, int64_t group)
{
    return self->packed + group * mtp_group_bytes(self->mapped.type, self->mapped.n_cols);
}

const void *mtp_packing_group(const mtp_packing *self, int64_t row)
{
    const int64_t group = row / MTP_GROUP_ROWS;
    return is_packed(self, group) ? group_at(self, group) : NULL;
}

/* Let the system reclaim the pages of groups, and what lies before them and was mapped with their
 * first rows; what is read again is mapped again. */
static void give_back(const mtp_packing *self, int64_t begin_group, int64_t end_group)
{
    if (self->offset < 0)
        return;
    const int64_t group_bytes = row_bytes(&self->mapped) * MTP_GROUP_ROWS;
    const int64_t rows_bytes = row_bytes(&self->mapped) * self->mapped.n_rows;
    const int64_t stop =
        end_group * group_bytes < rows_bytes ? end_group * group_bytes : rows_bytes;
    const int64_t begin =
        (self->offset + begin_group * group_bytes) / MAPPED_TOGETHER * MAPPED_TOGETHER;
    char *file = (char *)self->mapped.data - self->offset;
    mtp_give_back_pages(file + begin, (size_t)(self->offset + stop - begin));
}

/* Whether this thread is to pack a group; if so nobody else does. */
static int claim(mtp_packing *self, int64_t group)
{
    const uint8_t own = atomic_load_explicit(&mark, memory_order_relaxed);
    uint8_t found = atomic_load_explicit(&self->groups[group], memory_order_relaxed);
    return found != PACKED && found != own &&
           atomic_compare_exchange_strong(&self->groups[group], &found, own);
}

static void pack_groups(mtp_packing *self, int64_t begin, int64_t end)
{
    const mtp_matrix *w = &self->mapped;
    int any = 0;
    for (int64_t group = begin; group < end; group++) {
        if (!claim(self, group))
            continue;
        mtp_pack_group(w->type, w->n_rows, w->n_cols, w->data, group * MTP_GROUP_ROWS,
                       group_at(self, group));
        atomic_store_explicit(&self->groups[group], PACKED, memory_order_release);
        any = 1;
    }
    if (!any)
        return;
    give_back(self, begin, end);
    if (mtp_packing_is_over(self))
        give_back(self, 0, n_groups(w)); /* runs may have mapped some again */
}

static int64_t piece_groups(const mtp_matrix *w)
{
    const int64_t n = PIECE_BYTES / (row_bytes(w) * MTP_GROUP_ROWS);
    return n > 0 ? n : 1;
}

mtp_packing_queue *mtp_packing_queue_new(mtp_packing *const *packings, int64_t n)
{
    mtp_packing_queue *self = calloc(1, sizeof *self);
    if (self == NULL)
        return NULL;
    self->packings = calloc((size_t)n + 1, sizeof(mtp_packing *));
    self->first_pieces = calloc((size_t)n + 1, sizeof(int64_t));
    if (self->packings == NULL || self->first_pieces == NULL) {
        mtp_packing_queue_free(self);
        return NULL;
    }
    self->n = n;
    for (int64_t i = 0; i < n; i++) {
        const mtp_matrix *w = &packings[i]->mapped;
        const int64_t each = piece_groups(w);
        self->packings[i] = packings[i];
        self->first_pieces[i + 1] = self->first_pieces[i] + (n_groups(w) + each - 1) / each;
    }
    return self;
}

void mtp_packing_queue_free(mtp_packing_queue *self)
{
    if (self != NULL) {
        free(self->packings);
        free(self->first_pieces);
    }
    free(self);
}

typedef struct {
    mtp_packing_queue *queue;
    int64_t begin_ns, ns;
    mtp_interrupt *interrupt;
} packing_job;

static void pack_as_task(void *argument, int thread, int n_threads)
{
    const packing_job *job = argument;
    mtp_packing_queue *queue = job->queue;
    int64_t at = 0; /* pieces only go up */
    (void)thread, (void)n_threads;
    do {
        const int64_t piece = atomic_fetch_add(&queue->next, 1);
        if (piece >= queue->first_pieces[queue->n])
            break;
        while (piece >= queue->first_pieces[at + 1])
            at++;
        mtp_packing *packing = queue->packings[at];
        const int64_t all = n_groups(&packing->mapped), each = piece_groups(&packing->mapped);
        const int64_t begin = (piece - queue->first_pieces[at]) * each;
        pack_groups(packing, begin, begin + each < all ? begin + each : all);
    } while (mtp_now_ns() - job->begin_ns < job->ns && !mtp_is_interrupted(job->interrupt));
}

void mtp_packing_queue_run(mtp_packing_queue *self, mtp_pool *pool, int64_t ns,
                           mtp_interrupt *interrupt)
{
    packing_job job = {self, mtp_now_ns(), ns, interrupt};
    if (atomic_load(&self->next) >= self->first_pieces[self->n])
        atomic_store(&self->next, 0); /* once more: for what others had begun, and did not end */
    if (pool == NULL)
        mtp_run_alone(pack_as_task, &job);
    else
        mtp_pool_run(pool, pack_as_task, &job);
}
