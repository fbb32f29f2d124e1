"""The executor of plans (``c/plan/plan.h``, ``c/core/pool.h``); checks its arguments.

C trusts what it is told. So all that an address depends on is checked here:

==============  ===================================================================  ==============
for             what                                                                 by
==============  ===================================================================  ==============
an operation    views inside their buffers, as many weights as are read              ``add``
the whole plan  operations beside each other, their matrices and memory              ``finish``
each run        rows, pages, states, and the arrays of the caller                    ``take_...``
==============  ===================================================================  ==============
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from mtpcore._ext._buffers cimport doubles_of, floats, floats_of, int32s, int32s_of, memory_of
from mtpcore._ext._interrupt cimport mtp_interrupt, mtp_interrupt_begin
from mtpcore._ext._matmul cimport PackedMatrix, mtp_matrix, mtp_packed_bytes
from mtpcore._ext._sampling cimport Sampler, mtp_winner

from threading import main_thread

import numpy as np

from mtpcore.errors import BackendError, BatchError, CapacityError, SamplingError
from mtpcore.system.forks import after_forks

KV_TYPES = {"f32": MTP_KV_F32, "f16": MTP_KV_F16, "q8_0": MTP_KV_Q8_0}
KINDS = {mtp_kind_name(kind).decode(): kind for kind in range(MTP_KINDS)}
SHARING = {mtp_kind_name(kind).decode(): mtp_kind_sharing(kind).decode()
           for kind in range(MTP_KINDS)}
BARRIER_IF_FEW, BARRIER_IF_MANY = MTP_BARRIER_IF_FEW, MTP_BARRIER_IF_MANY
cdef int64_t PACKING = 4  # times as long as the run before
BY_ROWS, IN_COPIES, BY_COLUMNS = MTP_BY_ROWS, MTP_IN_COPIES, MTP_BY_COLUMNS
UNIT = MTP_UNIT
cdef int64_t MOST = 1 << 31  # rows of a batch, operations, heads: what int32 can count
HAS_ASAN = bool(MTP_HAS_ASAN)
MAX_THREADS = MTP_MAX_THREADS


ORDERS = ("together", "first to last", "last to first")


def use_order(str name not None):
    refuse_unless(name in ORDERS, "no such order of threads", " or ".join(ORDERS), repr(name))
    return ORDERS[mtp_pool_order(ORDERS.index(name))]


def expert_list_words(int64_t n_experts, int64_t n_slots):
    return mtp_expert_list_words(n_experts, n_slots)


cdef void *zeros(int64_t n, size_t each) except NULL:
    cdef void *found = calloc(max(n, 1), each)
    if found == NULL:
        raise CapacityError("no memory for a plan", wanted=f"{n} records of {each} bytes")
    return found


cdef int refuse_unless(bint is_right, what, wanted, got) except -1:
    if not is_right:
        raise BackendError(what, wanted=wanted, got=got)
    return 0


cdef extern from "pythread.h" nogil:
    unsigned long PyThread_get_thread_ident()


cdef unsigned long main_thread_id  # the only thread that Python lets handle signals


def note_main_thread():
    global main_thread_id
    main_thread_id = main_thread().ident


note_main_thread()
after_forks(note_main_thread)


cdef int run_signal_handlers(void *executor) noexcept nogil:
    """Let Python handle signals that came; return whether that raised, for the run to end."""
    if PyThread_get_thread_ident() != main_thread_id:
        return 0
    with gil:
        try:
            PyErr_CheckSignals()
        except BaseException as error:
            (<Executor> executor).raised = error
            return 1
    return 0


cdef int check_state(const int32_t *entry, int64_t seq, int64_t place, bint is_first) except -1:
    """Check that a row's place is reserved, and a pass's first row comes after a state."""
    cdef bint goes_on = entry[MTP_BEGIN] < place and (
        entry[MTP_OPENED_SLOT] < 0 or entry[MTP_OPENED_BASE] <= place)
    if place >= entry[MTP_END] or (is_first and place != entry[MTP_BEGIN] and not goes_on):
        raise CapacityError("rows without a state before them", where=f"sequence {seq}",
                            wanted=f"places {entry[MTP_BEGIN]}..{entry[MTP_END] - 1}", got=place)
    return 0


cdef class Executor:
    def __cinit__(self, *, int n_threads, int64_t n_batch, capacities, copies, offsets,
                  size_t arena_bytes, int64_t n_ops, int64_t n_vocab, stores=(), states=None):
        cdef int64_t i, n_buffers = len(offsets)
        memset(&self.interrupt, 0, sizeof(mtp_interrupt))
        self.interrupt.is_wanted = run_signal_handlers
        self.interrupt.argument = <void *> self
        memset(&self.plan, 0, sizeof(mtp_plan))
        memset(&self.run_state, 0, sizeof(mtp_run))
        memset(&self.sampling, 0, sizeof(mtp_fused_sampling))
        refuse_unless(1 <= n_threads <= MTP_MAX_THREADS, "impossible number of threads",
                      f"1 to {MTP_MAX_THREADS}", n_threads)
        refuse_unless(1 <= n_batch < MOST, "impossible number of rows", f"1 to {MOST - 1}", n_batch)
        refuse_unless(0 <= n_ops < MOST, "impossible number of operations", f"below {MOST}", n_ops)
        refuse_unless(len(capacities) == len(copies) == n_buffers,
                      "not a size, a distance of copies and an offset for each buffer", n_buffers,
                      (len(capacities), len(copies)))
        self.kept, self.unpacked, self.capacities = [], [], list(capacities)
        self.n_batch, self.n_vocab, self.most_ops = n_batch, n_vocab, n_ops
        self.most_places = INT64_MAX
        self.n_axes = 1
        # One record more than there are operations: where an operation is put together.
        self.ops = <mtp_op *> zeros(n_ops + 1, sizeof(mtp_op))
        self.copy_bytes = <size_t *> zeros(n_buffers, sizeof(size_t))
        self.reaches = <reach *> zeros(n_buffers, sizeof(reach))
        self.outside = <int32_t *> zeros(n_buffers, sizeof(int32_t))
        self.run_state.buffers = <void **> zeros(n_buffers, sizeof(void *))
        self.run_state.buffers_seen = <void **> zeros(n_threads * n_buffers, sizeof(void *))
        self.run_state.scratch = <char **> zeros(n_threads, sizeof(char *))
        # From here to `tiles`, which has one more: seven numbers of each row, in one block.
        self.run_state.base = <int32_t *> zeros(7 * n_batch + 1, sizeof(int32_t))
        self.run_state.memory = <mtp_memory *> zeros(len(stores), sizeof(mtp_memory))
        self.own_rows = <int32_t *> zeros(4 * n_batch, sizeof(int32_t))
        # Matmuls hand over whole units of rows, the last one filled up.
        self.sampling.most = (n_batch + MTP_UNIT - 1) // MTP_UNIT * MTP_UNIT
        self.sampling.samplers = <mtp_row_sampler *> zeros(self.sampling.most,
                                                           sizeof(mtp_row_sampler))
        self.sampling.winners = <mtp_winner *> zeros(n_threads * self.sampling.most,
                                                     sizeof(mtp_winner))
        self.arena = mtp_memory_zeros(arena_bytes)
        self.plan.pool = mtp_pool_of(n_threads)
        if self.arena == NULL or self.plan.pool == NULL:
            raise CapacityError("no memory for a plan", wanted=f"{arena_bytes} bytes")
        self.run_state.depth = self.run_state.base + n_batch
        self.run_state.is_tree = self.run_state.depth + n_batch
        self.run_state.before = self.run_state.is_tree + n_batch
        self.run_state.next = self.run_state.before + n_batch
        self.run_state.first_rows = self.run_state.next + n_batch
        self.run_state.tiles = self.run_state.first_rows + n_batch
        self.plan.ops, self.plan.n_threads = self.ops, n_threads
        self.plan.copy_bytes, self.plan.n_buffers = self.copy_bytes, n_buffers
        for i, offset in enumerate(offsets):
            self.copy_bytes[i] = copies[i]
            self.reaches[i].is_outside = offset is None
            if offset is None:
                self.outside[self.n_outside] = i
                self.n_outside += 1
            if offset is None and copies[i]:
                raise BackendError("copies of a buffer outside the arena", got=i)
            refuse_unless(self.capacities[i] >= 0, "buffer of a size below 0", ">= 0",
                          self.capacities[i])
            if offset is not None:
                size = max(self.capacities[i], n_threads * copies[i])
                refuse_unless(0 <= offset and offset + size <= arena_bytes,
                              "buffer outside the arena", f"0 to {arena_bytes}",
                              (offset, offset + size))
                self.run_state.buffers[i] = <char *> self.arena + <size_t> offset
                mtp_poison_after(self.run_state.buffers[i], size)
                mtp_poison_after_copies(self.run_state.buffers[i], self.capacities[i], copies[i],
                                        n_threads)
        self.n_pages = [store.n_pages for store in stores]
        self.remembered, self.attended, self.followed = set(), set(), set()
        for i, store in enumerate(stores):
            pages = memory_of(store.data)
            refuse_unless(store.page_bytes >= 0 and store.n_pages >= 0
                          and store.page_bytes * store.n_pages <= pages.n_bytes,
                          "pages outside of their memory", f"at most {pages.n_bytes} bytes",
                          (store.n_pages, store.page_bytes))
            refuse_unless(store.dtype in KV_TYPES, "unknown type of memory", ", ".join(KV_TYPES),
                          store.dtype)
            self.kept.append(store.data)
            self.run_state.memory[i].store = mtp_store(pages.data, store.page_bytes,
                                                       KV_TYPES[store.dtype])

        if states is not None:
            slots = memory_of(states.data)
            refuse_unless(states.slot_bytes >= 0 and states.n_slots >= 0
                          and states.slot_bytes * states.n_slots <= slots.n_bytes,
                          "slots outside of their memory", f"at most {slots.n_bytes} bytes",
                          (states.n_slots, states.slot_bytes))
            refuse_unless(<uintptr_t> slots.data % MTP_LINE == 0
                          and states.slot_bytes % MTP_LINE == 0,
                          "slots that begin on no cache line", f"multiples of {MTP_LINE} bytes",
                          (<uintptr_t> slots.data % MTP_LINE, states.slot_bytes))
            self.kept.append(states.data)
            self.run_state.states = mtp_states(slots.data, states.slot_bytes, states.n_slots, NULL)

    def __dealloc__(self):
        if self.ops != NULL:
            for i in range(self.most_ops + 1):
                free(self.ops[i].matrices)
        free(self.ops)
        free(self.reaches)
        free(self.outside)
        free(self.run_state.buffers)
        free(self.run_state.buffers_seen)
        free(self.copy_bytes)
        free(self.run_state.scratch)
        free(self.run_state.base)
        free(self.own_rows)
        free(self.run_state.memory)
        free(self.fetch)
        free(self.sampling.samplers)
        free(self.sampling.winners)
        mtp_packing_queue_free(self.queue)
        mtp_memory_free_zeros(self.arena)
        mtp_memory_free_zeros(self.scratch_memory)
        mtp_memory_free(self.draft_memory)

    cdef mtp_view view(self, found, int axis, bint is_written, bint holds_embeddings) except *:
        """Check that what a view reaches, at the largest batch, lies in its buffer."""
        cdef mtp_view view
        cdef reach *own
        buffer, n_heads, offset, row_stride, head_stride, width = found
        if not (0 <= buffer < self.plan.n_buffers and 1 <= n_heads < MOST
                and min(offset, row_stride, head_stride, width) >= 0):
            raise BackendError("view of no buffer, or of no values", got=found)
        # In Python's integers, which do not overflow.
        end_of_row = int(offset) + (int(n_heads) - 1) * int(head_stride) + int(width)
        last = end_of_row + (int(self.n_batch) - 1) * int(row_stride)
        # Threads have copies only while there is one unit of rows at most, and room for no more.
        few = end_of_row + (min(self.n_batch, MTP_UNIT) - 1) * int(row_stride)
        copied = self.copy_bytes[<int64_t> buffer]
        if not (4 * last <= self.capacities[buffer] and (copied == 0 or 4 * few <= copied)):
            raise BackendError("view outside its buffer", got=found)
        view.buffer, view.n_heads, view.offset = buffer, n_heads, offset
        view.row_stride, view.head_stride, view.width = row_stride, head_stride, width
        # How far a run reaches depends on its rows: of the caller's arrays `take_arrays` asks that.
        own = &self.reaches[view.buffer]
        own.row_stride[axis] = max(own.row_stride[axis], view.row_stride)
        own.end[axis] = max(own.end[axis], <int64_t> end_of_row)
        own.is_written |= is_written
        own.holds_embeddings |= holds_embeddings
        return view

    def add(self, str kind not None, int barrier, int axis, inputs, outputs, *, int sharing=0,
            int64_t n_units=0, matrices=(), weights=(), numbers=None, axes=None, ints=(),
            float f=0, int memory=0):
        cdef mtp_op *op = &self.ops[self.plan.n_ops]
        cdef mtp_matrix *found
        cdef int64_t i
        inputs, outputs, weights, ints = list(inputs), list(outputs), list(weights), list(ints)
        matrices, rows = tuple(matrices), None
        refuse_unless(not self.is_finished, "the plan is finished", "no more operations", kind)
        refuse_unless(self.plan.n_ops < self.most_ops, "more operations than were announced",
                      self.most_ops, kind)
        refuse_unless(kind in KINDS, "unknown operation", ", ".join(KINDS), kind)
        refuse_unless(axis in (MTP_TOKENS, MTP_OUTPUTS), "unknown axis", "0 or 1", axis)
        refuse_unless(sharing in (MTP_BY_ROWS, MTP_IN_COPIES, MTP_BY_COLUMNS),
                      "unknown way to share work", "0 to 2", sharing)
        refuse_unless(len(inputs) <= 5 and len(outputs) <= 2 and len(weights) <= 3
                      and len(ints) <= 7, "more than an operation has room for",
                      "5 inputs, 2 outputs, 3 weights, 7 numbers",
                      (len(inputs), len(outputs), len(weights), len(ints)))
        refuse_unless(sharing != MTP_BY_COLUMNS or n_units >= 1,
                      "columns are cut in one part at least", ">= 1", n_units)
        free(op.matrices)  # of an operation that was refused
        memset(op, 0, sizeof(mtp_op))
        op.kind, op.barrier, op.axis, op.f = KINDS[kind], barrier, axis, f
        op.sharing, op.n_units = sharing, n_units
        op.memory = memory
        # What the other axis's rows are taken from has rows of the batch.
        read_axis = MTP_TOKENS if kind == "take" else axis
        reads_given = kind in ("embed", "embedding_rows")
        for i, view in enumerate(inputs):
            op.inputs[i] = self.view(view, read_axis, False, reads_given)
        for i, view in enumerate(outputs):
            op.out[i] = self.view(view, axis, True, False)
        for i, value in enumerate(ints):
            op.n[i] = value
        for i, array in enumerate(weights):
            if array is not None:
                op.weights[i] = floats_of(array, False).data
        if numbers is not None:
            op.numbers = doubles_of(numbers).data
        if axes is not None:
            op.axes = int32s_of(axes, 1).data
        if matrices:
            found = <mtp_matrix *> zeros(len(matrices), sizeof(mtp_matrix))
            op.matrices = found
            is_packed = True
            for i, matrix in enumerate(matrices):
                is_packed &= (<PackedMatrix?> matrix).settle()
                found[i] = (<PackedMatrix> matrix).matrix
            if not is_packed:
                rows = [(<PackedMatrix> matrix).rows for matrix in matrices]
        self.check_lengths(op, matrices, weights, numbers, axes)
        if rows is not None:
            self.unpacked.append((self.plan.n_ops, matrices, rows))
        self.kept.append((matrices, weights, numbers, axes))  # the record points into them
        if op.kind == MTP_REMEMBER:
            self.remembered.add(memory)
        elif op.kind == MTP_ATTENTION:
            (self.attended if op.n[4] == MTP_BLOCK else self.followed).add(memory)
        elif op.kind == MTP_EMBED and op.n[0] == 0 and not inputs:
            self.needs_tokens = True
        self.plan.n_ops += 1

    cdef int check_lengths(self, const mtp_op *op, matrices, weights, numbers, axes) except -1:
        """Check that a kernel finds as many weights, matrices and angles as it looks for."""
        cdef int64_t wanted = op.out[0].width
        if op.kind in (MTP_EMBED, MTP_EMBED_POSITIONS, MTP_EMBED_CODES, MTP_EMBED_IDS, MTP_MATMUL,
                       MTP_EXPERT_MATMUL):
            wanted = op.n[0] if op.kind == MTP_EXPERT_MATMUL else 1
            if len(matrices) != max(wanted, 1) or any(
                    (one.type, one.shape) != (matrices[0].type, matrices[0].shape)
                    for one in matrices):
                raise BackendError("not as many equal matrices as are used", wanted=wanted,
                                   got=len(matrices))
            wanted = op.matrices[0].n_rows * len(matrices)
        elif op.kind == MTP_ROUTE:
            wanted = op.inputs[0].width
        elif op.kind in (MTP_ATTENTION, MTP_MERGE):
            wanted = op.out[0].n_heads
            refuse_unless(0 <= op.n[6] < MOST, "impossible distance", f"0 to {MOST - 1}", op.n[6])
        elif op.kind == MTP_XIELU:
            wanted = 4
        elif op.kind == MTP_SCALE_CHOSEN:
            wanted = op.n[0]
        elif op.kind in (MTP_SCALE_BY, MTP_SHIFT_BY) and op.n[0]:
            wanted *= op.out[0].n_heads
        elif op.kind == MTP_CAUSAL_CONV:
            wanted *= max(op.n[3], 0)
        elif op.kind == MTP_DELTA_RULE:  # rates of each column's entries, in whole blocks
            wanted = op.out[0].n_heads * ((wanted + 15) // 16 * 16) * op.inputs[1].width
        elif op.kind == MTP_BLOCK_CONV:
            wanted *= max(op.n[1], 0)
        elif op.kind == MTP_BLOCK_ATTENTION:
            wanted = max(op.n[1], 0) * (2 * min(max(op.n[0], 0), MTP_BLOCK_ROWS) - 1)
        elif op.kind == MTP_BLOCK_MIX:
            wanted *= min(max(op.n[0], 0), MTP_BLOCK_ROWS) ** 2
        for i, array in enumerate(weights):
            n = wanted
            if i == 1 and op.kind in (MTP_ATTENTION, MTP_MERGE):  # a bias for each distance
                n *= mtp_bias_width(op.n[6])
            if array is not None and floats_of(array, False).n != n:
                raise BackendError("not a weight for each value", wanted=n,
                                   got=floats_of(array, False).n)
        if op.kind == MTP_ATTENTION and numbers is not None and len(numbers) != 1:
            raise BackendError("not one cap of scores", wanted=1, got=len(numbers))
        if op.kind == MTP_ANGLES:
            n_numbers = 0 if numbers is None else len(numbers)
            n_axes = -1 if axes is None else len(axes)
            if n_numbers != op.n[0] + 1 or n_axes != op.n[0] or min(axes, default=0) < 0:
                raise BackendError("not a frequency and an axis for each pair", wanted=op.n[0],
                                   got=(n_numbers - 1, n_axes))
            self.n_axes = max(self.n_axes, 1 + int(max(axes, default=-1)))
        if op.kind == MTP_SCATTER:
            columns = np.asarray([] if axes is None else axes)
            if (not op.n[0] > 0 or not op.n[1] > 0 or len(columns) != int(op.n[0]) * int(op.n[1])
                    or columns.min() < 0 or columns.max() >= op.out[0].width):
                raise BackendError("not a column of the output for each value of a cluster",
                                   wanted=(op.n[0], op.n[1]), got=len(columns))
        # Attention whose ranges threads share leaves a sum for each, for which it has a buffer.
        if op.kind in (MTP_ATTENTION, MTP_MERGE) and op.n[5] > 1:
            self.most_places = min(self.most_places, op.n[5] * MTP_RANGE)
        return 0

    cdef int check_relations(self) except -1:
        """Check what operations take for granted of each other, of matrices and of memory."""
        cdef int64_t i
        cdef const char *misfit
        cdef mtp_bounds bounds
        cdef int64_t *sizes = <int64_t *> zeros(self.plan.n_buffers, sizeof(int64_t))
        try:
            for i in range(self.plan.n_buffers):
                sizes[i] = self.capacities[i]
            bounds = mtp_bounds(sizes, self.run_state.memory, self.n_batch, self.n_vocab,
                                len(self.n_pages), self.run_state.states.slot_bytes)
            for i in range(self.plan.n_ops):
                misfit = mtp_plan_misfit(&self.plan, i, &bounds)
                if misfit != NULL:
                    name = mtp_kind_name(self.ops[i].kind).decode()
                    raise BackendError(misfit.decode(), where=f"operation {i}, {name}")
        finally:
            free(sizes)
        return 0

    cdef int reserve_fetches(self) except -1:
        """Take the memory that ``choose_fetches`` needs, so that no later run lacks it."""
        cdef int64_t i
        types = {self.ops[i].matrices.type for i in range(self.plan.n_ops)
                 if self.ops[i].kind in (MTP_MATMUL, MTP_EXPERT_MATMUL)}
        self.fetch = <mtp_fetch_choice *> zeros(len(types) * MTP_FETCH_CLASSES,
                                                sizeof(mtp_fetch_choice))
        return 0

    cdef int choose_fetches(self) except -1:
        """Let ways to prefetch be compared for each weight type, where caches hold too little."""
        cdef int64_t i, n_bytes = 0
        cdef const mtp_matrix *w
        packed = [i for i in range(self.plan.n_ops)
                  if self.ops[i].kind in (MTP_MATMUL, MTP_EXPERT_MATMUL)
                  and not self.ops[i].matrices.is_mapped]
        for i in packed:
            w = self.ops[i].matrices
            n_matrices = self.ops[i].n[0] if self.ops[i].kind == MTP_EXPERT_MATMUL else 1
            n_bytes += n_matrices * mtp_packed_bytes(w.type, w.n_rows, w.n_cols)
        if n_bytes < self.worth_prefetching:
            return 0
        types = sorted({self.ops[i].matrices.type for i in packed})
        for i in range(len(types) * MTP_FETCH_CLASSES):
            self.fetch[i] = mtp_fetch_choice_new(types[i // MTP_FETCH_CLASSES],
                                                 i % MTP_FETCH_CLASSES)
        for i in packed:
            self.ops[i].fetch = 1 + types.index(self.ops[i].matrices.type)
        self.run_state.fetch, self.run_state.n_fetch = self.fetch, len(types) * MTP_FETCH_CLASSES
        return 0

    def finish(self, double work, double work_of_row, double worth_sharing,
               int64_t worth_prefetching=INT64_MAX, double most_packing=0):
        """Check the whole, and give every thread its scratch."""
        refuse_unless(self.scratch_memory == NULL, "the plan is finished", "one call", "another")
        refuse_unless(0 <= most_packing < MOST, "impossible time", f"seconds, below {MOST}",
                      most_packing)
        refuse_unless(self.plan.n_ops == self.most_ops, "not as many operations as were announced",
                      self.most_ops, self.plan.n_ops)
        self.check_relations()
        cdef size_t each = 64, used
        cdef int64_t i
        for i in range(self.plan.n_ops):
            each = max(each, mtp_scratch_bytes(&self.ops[i]))
        # A line more than is used: no two threads write one, and AddressSanitizer guards it.
        used, each = each, (each + 127) // 64 * 64
        self.scratch_memory = mtp_memory_zeros(each * self.plan.n_threads)
        if self.scratch_memory == NULL:
            raise CapacityError("no memory for a plan", wanted=f"{each} bytes a thread")
        for i in range(self.plan.n_threads):
            self.run_state.scratch[i] = <char *> self.scratch_memory + each * i
            mtp_poison_after(self.run_state.scratch[i], used)
        self.plan.work, self.plan.work_of_row = work, work_of_row
        self.plan.worth_sharing = worth_sharing
        self.worth_prefetching = worth_prefetching
        self.most_packing_ns = <int64_t> (most_packing * 1e9)
        self.reserve_fetches()
        if self.unpacked:
            self.queue_matrices()
        else:
            self.choose_fetches()
        self.is_finished = True

    cdef int queue_matrices(self) except -1:
        """Queue what is not packed, in the order in which operations read it."""
        cdef int64_t i
        cdef mtp_packing **packings
        matrices = list(dict.fromkeys(
            matrix for _, some, _ in self.unpacked for matrix in some
            if (<PackedMatrix> matrix).matrix.packing != NULL
        ))
        packings = <mtp_packing **> zeros(len(matrices), sizeof(mtp_packing *))
        for i in range(len(matrices)):
            packings[i] = (<PackedMatrix> matrices[i]).packing
        self.queue = mtp_packing_queue_new(packings, len(matrices))
        free(packings)
        if self.queue == NULL:
            raise CapacityError("no memory for a plan", wanted=f"{len(matrices)} records")
        return 0

    cdef int settle(self) except -1:
        """Let operations whose matrices are packed forget the mapped rows."""
        cdef int64_t at, i
        cdef list left = []
        # Between runs, when no thread reads the records.
        for operation in self.unpacked:
            at, matrices, _ = operation
            is_packed = True
            for matrix in matrices:
                if not (<PackedMatrix> matrix).settle():
                    is_packed = False
                    break
            if not is_packed:
                left.append(operation)
                continue
            for i in range(len(matrices)):
                self.ops[at].matrices[i] = (<PackedMatrix> matrices[i]).matrix
        if len(left) < len(self.unpacked):
            self.unpacked = left
        if not left and self.queue != NULL:
            mtp_packing_queue_free(self.queue)
            self.queue = NULL
            self.choose_fetches()
        return 0

    @property
    def bytes_to_pack(self):
        matrices = {matrix for _, some, _ in self.unpacked for matrix in some}
        return sum(round(matrix.nbytes * (1 - matrix.packed_share)) for matrix in matrices
                   if (<PackedMatrix> matrix).packing != NULL)

    @property
    def is_warm(self):
        cdef int64_t i
        if self.queue != NULL:
            return False
        for i in range(self.run_state.n_fetch):
            if self.fetch[i].is_timed and self.fetch[i].ns > 0:
                return False
        return True

    cdef void pack_before_run(self, mtp_interrupt *interrupt) noexcept nogil:
        """Pack some of the matrices before a run: the fewer runs are slow until all are packed."""
        # Nothing before the first run, so that the first token is there soon.
        if self.queue != NULL and self.run_ns > 0:
            self.pack_for(min(PACKING * self.run_ns, self.most_packing_ns), interrupt)

    cdef void pack_for(self, int64_t ns, mtp_interrupt *interrupt) noexcept nogil:
        mtp_packing_queue_run(self.queue, self.plan.pool if self.plan.n_threads > 1 else NULL, ns,
                              interrupt)

    def pack(self):
        """Pack all matrices."""
        if self.is_running:
            raise BackendError("a plan runs one batch at a time")
        self.is_running = True
        try:
            self.settle()
            mtp_interrupt_begin(&self.interrupt)
            while self.queue != NULL:  # what another plan was packing is looked at again
                with nogil:
                    self.pack_for(INT64_MAX, &self.interrupt)
                self.raise_interrupt()
                self.settle()
        finally:
            self.is_running = False

    cdef int check_place(self, const int32s *tables, const int32s *length, int64_t n_pages,
                         int64_t seq, int64_t place, int64_t row) except -1:
        if seq >= length.n or place >= length.data[seq]:
            raise BatchError("place is not reserved", where=f"row {row}",
                             got=f"sequence {seq}, place {place}")
        if not (seq < tables.n and place // MTP_PAGE < tables.width and
                0 <= tables.data[seq * tables.width + place // MTP_PAGE] < n_pages):
            raise BatchError("place has no page", where=f"row {row}", got=place)
        return 0

    cdef bint is_source(self, int64_t group):
        """Say whether rows attend to all of a group, and have no place in it."""
        return (group in self.attended and group not in self.followed
                and group not in self.remembered)

    cdef int check_sequence(self, const int32s *tables, const int32s *first, const int32s *length,
                            int64_t n_pages, int64_t seq) except -1:
        """Check that all of what attention may see of a sequence is there."""
        cdef int64_t begin, end, page
        if not (seq < length.n and seq < first.n and seq < tables.n):
            raise BatchError("sequence without memory", got=seq, wanted=f"below {length.n}")
        begin, end = first.data[seq], length.data[seq]
        if not (0 <= begin and end <= min(tables.width * MTP_PAGE, self.most_places)):
            raise BatchError("sequence is longer than the plan's memory", where=f"sequence {seq}",
                             got=f"places {begin} to {end}")
        for page in range(begin // MTP_PAGE, (end + MTP_PAGE - 1) // MTP_PAGE):
            if not 0 <= tables.data[seq * tables.width + page] < n_pages:
                raise BatchError("place has no page", where=f"sequence {seq}",
                                 got=page * MTP_PAGE)
        return 0

    cdef int take_states(self, states) except -1:
        """Note what memory has decided for the states of a batch's sequences.

        The run's rows are known already.
        """
        cdef int32s table
        cdef const mtp_run *run = &self.run_state
        cdef int64_t t, before
        cdef const int32_t *entry
        self.run_state.states.table = NULL
        if run.states.data == NULL:
            refuse_unless(states is None, "memory of another plan", "no recurrent layers", "some")
            return 0
        refuse_unless(states is not None, "recurrent layers need memory", "a table", None)
        table = int32s_of(states, 2)
        refuse_unless(table.width == MTP_STATE_COLUMNS, "memory of another plan",
                      f"{MTP_STATE_COLUMNS} columns", table.width)
        for t in range(run.n_rows[MTP_TOKENS]):
            if run.seq[t] >= table.n:
                raise BatchError("sequence without memory", got=run.seq[t],
                                 wanted=f"below {table.n}")
            entry = table.data + run.seq[t] * table.width
            before = t - 1  # the row before it: nearly always the neighbour
            while before >= 0 and run.seq[before] != run.seq[t]:
                before -= 1
            if before >= 0 and run.place[t] != run.place[before] + 1:
                raise BatchError("rows of a sequence leave no place out", where=f"row {t}",
                                 got=run.place[t], wanted=run.place[before] + 1)
            if before < 0:
                self.check_entry(entry, run.seq[t])
            check_state(entry, run.seq[t], run.place[t], before < 0)
            if run.parent != NULL and run.parent[t] != before:
                self.check_tree(entry, t)
        self.run_state.states.table = table.data
        return 0

    cdef int check_entry(self, const int32_t *entry, int64_t seq) except -1:
        """Check that what memory has decided for a sequence stays inside of slots and logs.

        In the order of places, where rows are logged in the slot that is read, or one is opened:

            base read -- rows of its log --> begin -- logged after them --> end
            base read -- rows of its log --> begin --> base opened -- logged as 0, 1, ... --> end
        """
        cdef int64_t begin = entry[MTP_BEGIN], end = entry[MTP_END], i
        cdef int64_t read = entry[MTP_READ_SLOT], opened = entry[MTP_OPENED_SLOT]
        cdef int64_t n_read = begin - entry[MTP_READ_BASE], n_slots = self.run_state.states.n_slots
        cdef int64_t n_logged = n_read if opened >= 0 else end - entry[MTP_READ_BASE]
        cdef bint fits = 0 <= begin < end and -1 <= read < n_slots and -1 <= opened < n_slots
        fits = fits and 0 <= n_read and n_logged <= MTP_LOG and (read >= 0 or n_read == 0)
        if opened >= 0:
            fits = fits and begin <= entry[MTP_OPENED_BASE] and opened != read
            fits = fits and entry[MTP_OPENED_BASE] <= end <= entry[MTP_OPENED_BASE] + MTP_LOG
        else:
            fits = fits and read >= 0
        for i in range(n_logged if fits else 0):
            fits = fits and 0 <= entry[MTP_LOGGED + i] < MTP_LOG
        if not fits:
            raise BatchError("states are not reserved", where=f"sequence {seq}",
                             got=f"places {begin} to {end}")
        return 0

    cdef int check_tree(self, const int32_t *entry, int64_t t) except -1:
        """Check that all rows of a draft tree are logged: any of them may be kept."""
        if entry[MTP_OPENED_SLOT] >= 0 and entry[MTP_OPENED_BASE] > entry[MTP_BEGIN]:
            raise CapacityError("a draft tree is longer than the log of recurrent layers",
                                where=f"sequence {self.run_state.seq[t]}",
                                wanted=f"at most {MTP_LOG} rows", fix="make drafts shorter",
                                got=entry[MTP_END] - entry[MTP_BEGIN])
        return 0

    cdef int take_rows(self, rows, pages, states) except -1:
        """Point the run at a batch, after checking all that addresses depend on.

        What the caller's arrays say of it is copied first: another thread may write to them.
        """
        cdef int32s tokens = int32s_of(rows.tokens, 1), seq = int32s_of(rows.seq, 1)
        cdef int32s place = int32s_of(rows.place, 1), outputs = int32s_of(rows.outputs, 1)
        cdef int32s positions = int32s_of(rows.positions, 2), parent, until
        cdef mtp_run *run = &self.run_state
        cdef int64_t n = tokens.n
        if not (n <= self.n_batch and seq.n == n and place.n == n and positions.n == n):
            raise BatchError("rows do not fit the plan", wanted=f"at most {self.n_batch} rows",
                             got=f"{n} tokens, {outputs.n} outputs")
        # Not places and outputs, which were made for this run; and no address depends on positions.
        run.tokens = <int32_t *> memcpy(self.own_rows, tokens.data, n * sizeof(int32_t))
        run.seq = <int32_t *> memcpy(self.own_rows + self.n_batch, seq.data, n * sizeof(int32_t))
        run.n_rows[0], run.n_rows[1], run.n_axes = n, outputs.n, positions.width
        run.place, run.positions, run.outputs = place.data, positions.data, outputs.data
        run.parent = run.until = NULL
        if rows.parent is not None:
            parent = int32s_of(rows.parent, 1)
            if parent.n != n:
                raise BatchError("one parent a row", wanted=n, got=parent.n)
            run.parent = <int32_t *> memcpy(self.own_rows + 2 * self.n_batch, parent.data,
                                            n * sizeof(int32_t))
        if rows.until is not None:
            until = int32s_of(rows.until, 1)
            if until.n != n or rows.parent is not None:
                raise BatchError("one end of a span a row, and no tree", wanted=n, got=until.n)
            run.until = <int32_t *> memcpy(self.own_rows + 3 * self.n_batch, until.data,
                                           n * sizeof(int32_t))
        self.check_rows(rows.embeddings is not None, pages, states)
        return 0

    cdef int check_rows(self, bint has_embeddings, pages, states) except -1:
        """Check all rows of the run that addresses depend on, and note where memory has them."""
        cdef const mtp_run *run = &self.run_state
        cdef int32s tables, first, length
        cdef int64_t n = run.n_rows[0], m = run.n_rows[1], n_pages, t, before
        cdef bint is_source
        cdef int32_t least = -1 if has_embeddings and not self.needs_tokens else 0
        cdef mtp_memory *memory
        refuse_unless(self.is_finished, "a plan that is not finished", "finish()", "run")
        if len(pages) != len(self.n_pages):
            raise BackendError("memory of another plan", wanted=f"{len(self.n_pages)} groups",
                               got=len(pages))
        if run.n_axes < self.n_axes:
            raise BatchError("positions with fewer axes than are read", wanted=self.n_axes,
                             got=run.n_axes)
        if n > self.n_batch or m > n:
            raise BatchError("rows do not fit the plan", wanted=f"at most {self.n_batch} rows",
                             got=f"{n} tokens, {m} outputs")
        for t in range(n):
            if self.n_vocab > 0 and not least <= run.tokens[t] < self.n_vocab:
                raise BatchError("token id out of range", where=f"row {t}", got=run.tokens[t],
                                 wanted=f"{least} to {self.n_vocab - 1}")
            if run.place[t] < 0 or run.seq[t] < 0:
                raise BatchError("place or sequence below 0", where=f"row {t}",
                                 got=(run.place[t], run.seq[t]))
            before = t - 1
            while before >= 0 and run.seq[before] != run.seq[t]:
                before -= 1
            if before >= 0 and run.place[before] >= run.place[t]:
                raise BatchError("rows of a sequence come in the order of their places",
                                 where=f"row {t}", got=run.place[t],
                                 wanted=f"above {run.place[before]}")
            before = -1 if run.parent == NULL else run.parent[t]
            if not -1 <= before < t or (before >= 0 and run.seq[before] != run.seq[t]):
                raise BatchError("a parent is an earlier row of the sequence", where=f"row {t}",
                                 got=before)
        for t in range(m):
            if not 0 <= run.outputs[t] < n:
                raise BatchError("output is not a row", where=f"output {t}", got=run.outputs[t])
        for i, group in enumerate(pages):
            tables, first = int32s_of(group.tables, 2), int32s_of(group.first, 1)
            length, n_pages = int32s_of(group.length, 1), self.n_pages[i]
            is_source = self.is_source(i)
            for t in range(n):
                if not is_source:
                    if run.until != NULL and run.seq[t] < length.n and (
                            run.until[t] > length.data[run.seq[t]]):
                        raise BatchError("span ends past what is reserved", where=f"row {t}",
                                         wanted=f"at most {length.data[run.seq[t]]}",
                                         got=run.until[t])
                    self.check_place(&tables, &length, n_pages, run.seq[t], run.place[t], t)
                if t == 0 or run.seq[t] != run.seq[t - 1]:
                    self.check_sequence(&tables, &first, &length, n_pages, run.seq[t])
                    if is_source and first.data[run.seq[t]] >= length.data[run.seq[t]]:
                        raise BatchError("nothing to attend to", where=f"sequence {run.seq[t]}",
                                         wanted="rows of its source")
            memory = &self.run_state.memory[i]
            memory.tables, memory.first, memory.length = tables.data, first.data, length.data
            memory.pages_of_seq = tables.width
        self.take_states(states)
        return 0

    cdef int64_t n_values(self, int64_t buffer) except -1:
        """Return how many values of a buffer outside the arena operations reach in this run."""
        cdef const reach *own = &self.reaches[buffer]
        cdef int64_t wanted = 0
        cdef int64_t last_row
        cdef int axis
        for axis in range(2):
            if own.end[axis] and self.run_state.n_rows[axis]:
                last_row = (self.run_state.n_rows[axis] - 1) * own.row_stride[axis]
                wanted = max(wanted, <int64_t> (last_row + own.end[axis]))
        return wanted

    cdef int take_arrays(self, external, bint has_embeddings, int32_t unwritten) except -1:
        """Note the arrays of the buffers outside the arena; ``unwritten`` needs none.

        The run's rows are known already.
        """
        cdef int64_t i, n, wanted
        cdef floats values
        cdef reach *own
        for n in range(self.n_outside):  # those of the run before are not taken for new ones
            self.reaches[self.outside[n]].given = -1
        for buffer, array in external:
            i = buffer
            if not (0 <= i < self.plan.n_buffers and self.reaches[i].is_outside):
                raise BackendError("an array for a buffer that is not outside the arena",
                                   wanted=f"0 to {self.plan.n_buffers - 1}", got=i)
            values = floats_of(array, self.reaches[i].is_written)
            self.run_state.buffers[i], self.reaches[i].given = values.data, values.n
        for n in range(self.n_outside):
            i = self.outside[n]
            own = &self.reaches[i]
            if i == unwritten:
                continue
            if own.holds_embeddings and not has_embeddings:
                continue
            wanted = self.n_values(i)
            if wanted > 0 and own.given < wanted:
                raise BatchError("array does not fit the rows", where=f"buffer {i}",
                                 wanted=f"{wanted} values", got=max(own.given, 0))
        return 0

    def run(self, rows, pages, external, int32_t logits=-1, written=None, states=None):
        """Run a batch; ``external`` holds (buffer, array) of what lies outside the arena."""
        cdef int32_t *chosen
        cdef int64_t begin
        if self.is_running:
            raise BackendError("a plan runs one batch at a time")
        self.is_running = True
        try:
            self.settle()
            self.take_rows(rows, pages, states)
            self.run_state.interrupt = &self.interrupt
            mtp_interrupt_begin(&self.interrupt)
            self.take_arrays(external, rows.embeddings is not None, logits)
            if logits >= 0:
                self.take_sampling(rows.fused_sampling, logits, written)
                found = np.empty(self.sampling.n, np.int32)
                chosen = int32s_of(found, 1).data
                if self.run_state.n_rows[0] > 0:
                    with nogil:
                        self.pack_before_run(&self.interrupt)
                        begin = mtp_now_ns()
                        mtp_plan_choose(&self.plan, &self.run_state, &self.sampling, chosen)
                        self.run_ns = mtp_now_ns() - begin
                    self.raise_interrupt()
                return found
            if self.run_state.n_rows[0] > 0:
                with nogil:
                    self.pack_before_run(&self.interrupt)
                    begin = mtp_now_ns()
                    mtp_plan_run(&self.plan, &self.run_state)
                    self.run_ns = mtp_now_ns() - begin
                self.raise_interrupt()
        finally:
            self.is_running = False

    cdef int raise_interrupt(self) except -1:
        """Raise what a signal handler raised while the batch ran, which is then undone."""
        if self.raised is None:
            return 0
        raised, self.raised = self.raised, None
        raise raised

    @property
    def progress(self):
        if not self.is_running:
            return 0.0
        return <double> self.interrupt.n_begun / <double> self.plan.n_ops

    def can_choose(self, int32_t logits):
        return mtp_plan_n_logits(&self.plan, logits) > 0

    cdef int take_sampling(self, wanted, int32_t logits, written) except -1:
        """Check who chooses, or where the logits go, and note it."""
        cdef int64_t n = self.run_state.n_rows[1], at = 0, i, index
        cdef int64_t n_logits = mtp_plan_n_logits(&self.plan, logits)
        cdef float *kept = floats_of(written, True).data
        cdef const int32_t[::1] ids = wanted.token_ids
        cdef Sampler sampler
        samplers, indices = tuple(wanted.samplers), wanted.indices
        if not len(samplers) == len(indices) == n:
            raise BatchError("one choice an output", wanted=n, got=(len(samplers), len(indices)))
        if n_logits == 0:
            raise BackendError("the plan writes its logits")
        if written.shape != (samplers.count(None), n_logits):
            raise BatchError("one row an output that chooses nothing", where="logits",
                             wanted=(samplers.count(None), n_logits), got=written.shape)
        self.sampling.logits, self.sampling.n = logits, n
        self.sampling.token_ids = NULL
        if ids is not None and n_logits != ids.shape[0]:
            raise SamplingError("token_ids does not fit the logits", where="fused_sampling",
                                wanted=f"{n_logits} ids", got=ids.shape[0])
        if ids is not None:
            self.sampling.token_ids = &ids[0]
        self.choosing = samplers  # whose settings the records point to
        for i in range(n):
            if samplers[i] is None:
                self.sampling.samplers[i] = mtp_row_sampler(NULL, 0, kept + at * n_logits)
                at += 1
                continue
            sampler, index = <Sampler?> samplers[i], indices[i]
            sampler._check(n_logits, 0, 0, index, ids, None)
            if not sampler.is_gumbel_max:
                raise SamplingError("a choice needs all of its logits", where=f"output {i}")
            self.sampling.samplers[i] = mtp_row_sampler(&sampler.settings, index, NULL)
        return 0

    cdef char *reserve(self, size_t size) except NULL:
        """Return memory that is kept from draft to draft, its contents undefined."""
        if size > self.draft_bytes:  # twice as much, so that growing drafts seldom ask again
            mtp_memory_free(self.draft_memory)
            self.draft_bytes = 0
            self.draft_memory = mtp_memory_new(2 * size)
            if self.draft_memory == NULL:
                raise CapacityError("no memory for a draft", wanted=f"{2 * size} bytes")
            self.draft_bytes = 2 * size
        return <char *> self.draft_memory
