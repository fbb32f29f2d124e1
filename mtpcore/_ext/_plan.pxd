"""The executor of plans for other compiled modules."""

from libc.stdint cimport int8_t, int32_t, int64_t

from mtpcore._ext._buffers cimport int32s
from mtpcore._ext._interrupt cimport mtp_interrupt
from mtpcore._ext._matmul cimport mtp_matrix, mtp_packing
from mtpcore._ext._sampling cimport mtp_winner, mtp_sampler_scratch, mtp_sampling


cdef extern from "core/memory.h" nogil:
    void *mtp_memory_zeros(size_t size)
    void mtp_memory_free_zeros(void *memory)
    void *mtp_memory_new(size_t size)
    void mtp_memory_free(void *memory)
    bint MTP_HAS_ASAN
    void mtp_poison_after(void *memory, size_t bytes)
    void mtp_poison_after_copies(void *memory, size_t bytes, size_t each, int64_t n_copies)


cdef extern from "ops/rows.h" nogil:
    int64_t mtp_expert_list_words(int64_t n_experts, int64_t n_slots)


cdef extern from "core/clock.h" nogil:
    int64_t mtp_now_ns()


cdef extern from "core/pool.h" nogil:
    ctypedef struct mtp_pool:
        pass

    int MTP_MAX_THREADS
    mtp_pool *mtp_pool_of(int n_threads)
    int mtp_pool_order(int order)


cdef extern from "matmul/fetch_choice.h" nogil:
    enum:
        MTP_FETCH_CLASSES

    ctypedef struct mtp_fetch_choice:
        int is_timed
        double ns

    mtp_fetch_choice mtp_fetch_choice_new(int32_t type, int32_t rows)


cdef extern from "matmul/packing.h" nogil:
    ctypedef struct mtp_packing_queue:
        pass

    mtp_packing_queue *mtp_packing_queue_new(mtp_packing **packings, int64_t n)
    void mtp_packing_queue_free(mtp_packing_queue *self)
    void mtp_packing_queue_run(mtp_packing_queue *self, mtp_pool *pool, int64_t ns,
                               mtp_interrupt *interrupt)


cdef extern from "plan/plan.h" nogil:
    ctypedef int mtp_kind
    mtp_kind MTP_EMBED, MTP_EMBED_POSITIONS, MTP_EMBED_CODES, MTP_MATMUL, MTP_EXPERT_MATMUL
    mtp_kind MTP_SCALE_CHOSEN, MTP_XIELU, MTP_SCALE_BY, MTP_SHIFT_BY, MTP_ROUTE, MTP_ATTENTION
    mtp_kind MTP_MERGE, MTP_ANGLES, MTP_CAUSAL_CONV, MTP_DELTA_RULE, MTP_REMEMBER, MTP_SCATTER
    mtp_kind MTP_BLOCK_MIX, MTP_BLOCK_CONV, MTP_BLOCK_ATTENTION, MTP_EMBED_IDS
    mtp_kind MTP_KINDS
    const char *mtp_kind_name(mtp_kind kind)
    const char *mtp_kind_sharing(mtp_kind kind)

    ctypedef struct mtp_view:
        int32_t buffer
        int32_t n_heads
        int64_t offset
        int64_t row_stride
        int64_t head_stride
        int64_t width

    ctypedef struct mtp_op:
        mtp_kind kind
        int32_t barrier
        int32_t axis
        int32_t sharing
        int64_t n_units
        mtp_view[5] inputs "in"
        mtp_view[2] out
        mtp_matrix *matrices
        const float *weights[3]
        const double *numbers
        const int32_t *axes
        int64_t[7] n
        float f
        int32_t memory
        int32_t fetch

    ctypedef enum mtp_kv_type:
        MTP_KV_F32
        MTP_KV_F16
        MTP_KV_Q8_0

    ctypedef struct mtp_store:
        char *data
        int64_t page_bytes
        mtp_kv_type type

    ctypedef struct mtp_memory:
        mtp_store store
        const int32_t *tables
        const int32_t *first
        const int32_t *length
        int64_t pages_of_seq

    ctypedef struct mtp_states:
        char *data
        int64_t slot_bytes
        int64_t n_slots
        const int32_t *table

    ctypedef struct mtp_run:
        int64_t[2] n_rows
        const int32_t *tokens
        const int32_t *positions
        const int32_t *seq
        const int32_t *place
        const int32_t *outputs
        const int32_t *parent
        const int32_t *until
        int64_t n_axes
        void **buffers
        mtp_memory *memory
        mtp_states states
        mtp_interrupt *interrupt
        int32_t *base
        int32_t *depth
        int32_t *is_tree
        int32_t *tiles
        int64_t n_tiles
        int32_t *before
        int32_t *next
        int32_t *first_rows
        int64_t n_sequences
        char **scratch
        void **buffers_seen
        mtp_fetch_choice *fetch
        int64_t n_fetch

    ctypedef struct mtp_plan:
        const mtp_op *ops
        int64_t n_ops
        const size_t *copy_bytes
        int64_t n_buffers
        int n_threads
        mtp_pool *pool
        double work_of_row
        double work
        double worth_sharing

    int MTP_TOKENS, MTP_OUTPUTS
    int MTP_LINE
    int MTP_UNIT
    int MTP_PAGE
    int MTP_BARRIER_IF_FEW, MTP_BARRIER_IF_MANY
    int MTP_BY_ROWS, MTP_IN_COPIES, MTP_BY_COLUMNS
    int MTP_BLOCK
    int MTP_RANGE
    int MTP_LOG
    int MTP_BLOCK_ROWS
    int64_t mtp_bias_width(int64_t max_distance)
    size_t mtp_scratch_bytes(const mtp_op *op)
    void mtp_plan_run(const mtp_plan *plan, mtp_run *run)


cdef extern from "recurrent/states.h" nogil:
    enum:
        MTP_READ_SLOT
        MTP_READ_BASE
        MTP_OPENED_SLOT
        MTP_OPENED_BASE
        MTP_BEGIN
        MTP_END
        MTP_LOGGED
        MTP_STATE_COLUMNS


cdef extern from "plan/check.h" nogil:
    ctypedef struct mtp_bounds:
        const int64_t *bytes
        const mtp_memory *memory
        int64_t n_batch
        int64_t n_vocab
        int64_t n_groups
        int64_t slot_bytes

    const char *mtp_plan_misfit(const mtp_plan *plan, int64_t at, const mtp_bounds *bounds)


cdef extern from "plan/fused_sampling.h" nogil:
    ctypedef struct mtp_row_sampler:
        const mtp_sampling *settings
        int64_t index
        float *logits

    ctypedef struct mtp_fused_sampling:
        int32_t logits
        int64_t n
        int64_t most
        const int32_t *token_ids
        mtp_row_sampler *samplers
        mtp_winner *winners

    int64_t mtp_plan_n_logits(const mtp_plan *plan, int32_t logits)
    void mtp_plan_choose(const mtp_plan *plan, mtp_run *run, mtp_fused_sampling *sampling,
                         int32_t *chosen)


cdef extern from "plan/draft.h" nogil:
    ctypedef struct mtp_fill:
        int32_t output
        int32_t ahead
        int32_t draft
        int32_t stage
        int32_t source
        int32_t row

    ctypedef struct mtp_rows:
        int64_t n
        int64_t n_outputs
        int64_t n_axes
        int is_tree
        int has_spans
        int32_t *tokens
        int32_t *seq
        int32_t *place
        int32_t *positions
        int32_t *outputs
        int32_t *parent
        int32_t *before
        int32_t *until

    ctypedef struct mtp_pick:
        int32_t output
        int32_t draft
        int32_t rank

    ctypedef struct mtp_best:
        int32_t *candidates
        int32_t *drafts
        int64_t n_candidates
        int64_t n_drafts
        int32_t goes_on
        int32_t stage
        int32_t pick

    ctypedef struct mtp_part:
        int32_t buffer
        int32_t axis
        int64_t width

    ctypedef struct mtp_kept:
        mtp_part *parts
        int64_t n_parts
        int64_t width
        float *rows
        int8_t *is_finite

    ctypedef struct mtp_slot:
        int32_t buffer
        int32_t kind
        int64_t width
        const float *given
        float *rows

    ctypedef struct mtp_text:
        const mtp_sampling *settings
        mtp_sampler_scratch *scratch
        int32_t *history
        int64_t n_history
        int64_t n_prompt
        int64_t index
        double p_min

    ctypedef struct mtp_draft_token:
        int32_t text
        int32_t parent
        int32_t depth
        int32_t is_anew
        int32_t token
        int32_t stage
        int32_t output
        int32_t is_open
        int32_t best_of
        float probability

    ctypedef struct mtp_stage:
        const mtp_plan *plan
        mtp_run *run
        mtp_fused_sampling sampling
        const mtp_rows *given
        int form
        mtp_fill *told
        int64_t n_told
        mtp_fill *fills
        int64_t n_fills
        mtp_pick *picks
        int64_t n_picks
        mtp_slot *slots
        int64_t n_slots
        mtp_kept *kept
        int64_t repeats
        int runs_whole
        int ends_at_nan
        mtp_rows rows
        int32_t *at
        int has_run

    ctypedef struct mtp_schedule:
        mtp_text *texts
        int64_t n_texts
        mtp_draft_token *drafts
        int64_t n_drafts
        mtp_best *bests
        int64_t n_bests
        int64_t n_found
        mtp_stage *stages
        int64_t n_stages
        int64_t n_kinds
        int keeps_logits
        int64_t n_logits
        int64_t n_tokens
        mtp_rows rows
        int32_t *is_dead
        int32_t *row_at
        int32_t *row_of
        int32_t *ids
        float *probabilities
        double *shares

    int32_t MTP_KNOWN, MTP_OF_DRAFT, MTP_CHOICE, MTP_BEST
    int MTP_GIVEN, MTP_CHAIN, MTP_TREE
    int64_t mtp_row_before(const mtp_rows *rows, int64_t row)
    int64_t mtp_stage_place(mtp_stage *stage)
    void mtp_run_take(mtp_run *run, const mtp_rows *rows, int64_t n, int64_t n_outputs)
    void mtp_schedule_run(mtp_schedule *schedule)


cdef void *zeros(int64_t n, size_t each) except NULL


# What operations reach of a buffer outside the arena, in values of 4 bytes, by axis: the largest
# distance of rows, and where the last row's values end if it begins at 0.
cdef struct reach:
    int64_t[2] row_stride
    int64_t[2] end
    bint is_outside, is_written
    bint holds_embeddings  # which only tokens of -1 read
    int64_t given  # values of the array of this run, below 0 for none


cdef class Executor:
    cdef mtp_plan plan
    cdef mtp_run run_state
    cdef mtp_op *ops
    cdef void *arena
    cdef void *scratch_memory
    cdef mtp_fused_sampling sampling
    cdef tuple choosing  # the samplers that the fused sampling points into
    cdef void *draft_memory  # what a draft loop writes, kept from one to the next
    cdef size_t draft_bytes
    cdef list kept          # what records point to
    cdef list capacities    # bytes of each buffer
    cdef size_t *copy_bytes  # of each buffer that every thread has a copy of
    cdef mtp_fetch_choice *fetch
    cdef reach *reaches     # of each buffer
    cdef int32_t *outside   # the buffers outside the arena
    cdef int64_t n_outside
    cdef int64_t most_ops
    cdef int64_t most_places  # of a sequence, so that its ranges are no more than planned
    cdef bint is_finished
    cdef int64_t n_batch
    cdef int32_t *own_rows  # tokens, sequences and parents of a batch, n_batch of each
    cdef int64_t n_vocab
    cdef list n_pages       # of each group of memory
    cdef set remembered     # groups of memory that rows are stored in
    cdef set attended       # groups that rows attend to all of
    cdef set followed       # groups that rows attend to up to their own place, or some other
    cdef bint needs_tokens  # whether an operation has no row for what is no token
    cdef int64_t n_axes     # that positions have at least
    cdef bint is_running
    cdef list unpacked      # operations with matrices to pack: index, matrices, their mapped rows
    cdef mtp_packing_queue *queue  # of these matrices, or NULL
    cdef int64_t run_ns     # that the last run took; 0 where there was none
    cdef int64_t worth_prefetching, most_packing_ns
    cdef mtp_interrupt interrupt
    cdef object raised      # by a signal handler while a batch ran
    cdef int raise_interrupt(self) except -1
    cdef int queue_matrices(self) except -1
    cdef int settle(self) except -1
    cdef void pack_before_run(self, mtp_interrupt *interrupt) noexcept nogil
    cdef void pack_for(self, int64_t ns, mtp_interrupt *interrupt) noexcept nogil
    cdef mtp_view view(self, object found, int axis, bint is_written,
                       bint holds_embeddings) except *
    cdef int check_lengths(self, const mtp_op *op, matrices, weights, numbers, axes) except -1
    cdef int check_relations(self) except -1
    cdef int reserve_fetches(self) except -1
    cdef int choose_fetches(self) except -1
    cdef int check_place(self, const int32s *tables, const int32s *length, int64_t n_pages,
                         int64_t seq, int64_t place, int64_t row) except -1
    cdef bint is_source(self, int64_t group)
    cdef int take_sampling(self, object wanted, int32_t logits, object written) except -1
    cdef char *reserve(self, size_t size) except NULL
    cdef int check_sequence(self, const int32s *tables, const int32s *first, const int32s *length,
                            int64_t n_pages, int64_t seq) except -1
    cdef int take_rows(self, object rows, object pages, object states) except -1
    cdef int check_rows(self, bint has_embeddings, object pages, object states) except -1
    cdef int take_states(self, object states) except -1
    cdef int check_entry(self, const int32_t *entry, int64_t seq) except -1
    cdef int check_tree(self, const int32_t *entry, int64_t t) except -1
    cdef int take_arrays(self, object external, bint has_embeddings, int32_t unwritten) except -1
    cdef int64_t n_values(self, int64_t buffer) except -1


cdef int check_state(const int32_t *entry, int64_t seq, int64_t place, bint is_first) except -1
