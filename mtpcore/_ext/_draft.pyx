"""The draft loop of ``c/plan/draft.h``; checks its arguments."""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from mtpcore._ext._buffers cimport int32s, int32s_of
from mtpcore._ext._interrupt cimport mtp_interrupt_begin
from mtpcore._ext._plan cimport (
    MTP_MOST_RECYCLED, MTP_OUTPUTS, MTP_STATE_COLUMNS, MTP_TOKENS, Executor, check_state, mtp_draft,
    mtp_draft_lay_out, mtp_draft_pass, mtp_draft_run, mtp_draft_sequence, mtp_plan_n_logits,
    mtp_now_ns, mtp_recycle, mtp_run, zeros,
)
from mtpcore._ext._sampling cimport Sampler

from mtpcore.errors import BackendError, BatchError, CapacityError

cdef int64_t MOST_TOKENS = 1 << 40  # of all histories: sizes in bytes stay far from overflowing


def draft(wanted, list passes not None, fed=()):
    cdef mtp_draft loop
    cdef int64_t begin, i, m = len(wanted.k if wanted.is_block else wanted.batch.outputs)
    cdef Executor one, executor
    if m == 0 or len(wanted.batch.tokens) == 0:
        return [[] for _ in range(m)], 0
    if not passes:
        raise BackendError("a draft without passes")
    passes = [(<Executor?> each[0], *each[1:]) for each in passes]
    memset(&loop, 0, sizeof(mtp_draft))
    loop.n_sequences, loop.n_passes, loop.in_place = m, len(passes), bool(wanted.in_place)
    loop.is_block = bool(wanted.is_block)
    samplers = tuple(wanted.samplers)  # what the loop points into
    running, taken = [], ()
    try:
        for each in passes:
            one = each[0]
            if one.is_running:
                raise BackendError("a plan runs one batch at a time")
            running.append(one)
            one.is_running = True
        loop.passes = <mtp_draft_pass *> zeros(loop.n_passes, sizeof(mtp_draft_pass))
        for i in range(loop.n_passes):
            take_pass(&loop, i, passes)
        if loop.is_block and loop.n_passes > 1:
            take_post_head(&loop, wanted.post_head.passes, passes, fed)
        take_sequences(&loop, wanted, samplers, passes[0][0])
        if loop.is_block:
            take_block(&loop)
        elif loop.n_passes == 1:
            check_places(&loop, passes[0][0], passes[0][2])
        for i in range(1, 1 if loop.is_block else loop.n_passes):
            take_later_rows(&loop, i)
        for sampler in samplers:
            (<Sampler> sampler)._check_scratch()
        taken = samplers
        for sampler in taken:
            (<Sampler> sampler).scratch.is_taken = True
        one = passes[0][0]
        for i in range(loop.n_passes):
            loop.passes[i].run.interrupt = &one.interrupt
        mtp_interrupt_begin(&one.interrupt)
        for each in passes:
            executor = each[0]
            with nogil:
                executor.pack_behind(&one.interrupt)
        begin = mtp_now_ns()
        with nogil:
            mtp_draft_run(&loop)
        for each in passes:
            (<Executor> each[0]).run_ns = (mtp_now_ns() - begin) // loop.n_passes
        one.raise_interrupt()
        return [drafts_of(&loop.sequences[i]) for i in range(m)], loop.n_run
    finally:
        for sampler in taken:
            (<Sampler> sampler).scratch.is_taken = False
        for one in running:
            one.is_running = False
        free(loop.passes)


cdef int64_t own_values(Executor executor, int64_t buffer):
    """Return how many values the array of a buffer outside the arena has; 0 where there is none."""
    if not 0 <= buffer < executor.plan.n_buffers or not executor.reaches[buffer].is_outside:
        return 0
    return max(executor.reaches[buffer].given, 0)


cdef int check_recycled(Executor executor, int64_t output, int64_t axis, int64_t width) except -1:
    """Check that rows of ``width`` values can be taken from an output."""
    if axis not in (MTP_TOKENS, MTP_OUTPUTS) or not 1 <= width < MOST_TOKENS:
        raise BackendError("no such rows to recycle", got=(axis, width))
    if own_values(executor, output) < width * executor.run_state.n_rows[axis]:
        raise BackendError("an output with fewer values than are recycled", got=output)
    return 0


cdef int check_fed(Executor executor, int64_t slot, int64_t width) except -1:
    """Check that rows of ``width`` values are all that a slot reads."""
    cdef int64_t n_tokens = executor.run_state.n_rows[MTP_TOKENS]
    if (own_values(executor, slot) < max(width * n_tokens, 1) or executor.reaches[slot].is_written
            or executor.reaches[slot].row_stride[MTP_TOKENS] > width
            or executor.reaches[slot].end[MTP_TOKENS] > width
            or executor.reaches[slot].end[MTP_OUTPUTS]):
        raise BackendError("a slot with rows of another width than it is fed", got=slot)
    return 0


cdef list drafts_of(mtp_draft_sequence *own):
    cdef int64_t i
    return [own.history[own.n_history + i] for i in range(own.n_drafts)]


cdef int take_pass(mtp_draft *loop, int64_t number, list passes) except -1:
    """Check a pass by itself and against the first one; note what it runs."""
    cdef mtp_draft_pass *own = &loop.passes[number]
    cdef Executor executor, first = passes[0][0]
    cdef int64_t n_logits
    cdef mtp_recycle *taken
    executor, rows, pages, states, external, logits, n_logits, recycled = passes[number]
    check_room(len(recycled))
    executor.settle()
    executor.take_rows(rows, pages, states)
    executor.take_arrays(external, rows.embeddings is not None, -1)
    if (number == 0 and not loop.is_block
            and executor.run_state.n_rows[MTP_OUTPUTS] != loop.n_sequences):
        raise BatchError("one output a sequence", where="pass 0", wanted=loop.n_sequences,
                         got=executor.run_state.n_rows[MTP_OUTPUTS])
    if (n_logits < 1 or own_values(executor, logits) < n_logits * executor.run_state.n_rows[1]
            or mtp_plan_n_logits(&executor.plan, logits) not in (0, n_logits)):
        raise BackendError("a buffer without room for the logits", where=f"pass {number}",
                           got=n_logits)
    own.plan, own.run = &executor.plan, &executor.run_state
    own.sampling, own.sampling.logits = executor.sampling, logits
    own.n_rows = executor.run_state.n_rows[MTP_TOKENS] if number else loop.n_sequences
    own.n_recycled = len(recycled)
    for i, (slot, output, axis, width) in enumerate(recycled):
        check_recycled(executor, output, axis, width)
        if number or loop.n_passes == 1:
            check_fed(executor, slot, width)
        own.recycled[i] = mtp_recycle(slot, output, axis, width, 0, width, NULL)
    if number == 0:
        loop.n_logits = n_logits
    reads_drafts = number or not loop.is_block
    if reads_drafts and executor.n_vocab and not 0 < loop.n_tokens <= executor.n_vocab:
        loop.n_tokens = executor.n_vocab
    if not (executor.plan.n_threads == first.plan.n_threads and n_logits == loop.n_logits
            and own.n_recycled == loop.passes[0].n_recycled):
        raise BackendError("passes of one draft that differ", where=f"pass {number}",
                           wanted="threads, logits and slots of the first one")
    for i in range(own.n_recycled):
        taken = &own.recycled[i]
        if taken.width != loop.passes[0].recycled[i].width:
            raise BackendError("a slot of another width", where=f"pass {number}, slot {i}",
                               wanted=loop.passes[0].recycled[i].width, got=taken.width)
    return 0


cdef int check_room(int64_t n_slots) except -1:
    """Check that the loop can feed ``n_slots`` slots."""
    if n_slots > MTP_MOST_RECYCLED:
        raise CapacityError("too many slots are fed", got=n_slots,
                            wanted=f"{MTP_MOST_RECYCLED} at most", fix="join some in one slot")
    return 0


cdef int take_post_head(mtp_draft *loop, int64_t most_passes, list passes, fed) except -1:
    """Check what feeds the slots of a post-head, and note all rows that it may run."""
    cdef Executor block = passes[0][0], behind = passes[1][0]
    cdef mtp_draft_pass *own = &loop.passes[0]
    cdef mtp_draft_pass *later = &loop.passes[1]
    cdef int64_t slot, output, axis, width, column, stride
    if loop.n_passes > 2:
        raise BackendError("a block has one post-head", got=loop.n_passes - 1)
    if own.run.n_rows[MTP_OUTPUTS] != later.run.n_rows[MTP_TOKENS]:
        raise BatchError("a row for each output", where="a post-head",
                         wanted=own.run.n_rows[MTP_OUTPUTS], got=later.run.n_rows[MTP_TOKENS])
    loop.most_passes, loop.rows = max(most_passes, 0), later.run[0]
    own.n_rows = 0
    for slot, parts in fed:
        column, stride = 0, sum([width for _, _, width in parts])
        check_fed(behind, slot, stride)
        for output, axis, width in parts:
            check_room(own.n_recycled + 1)
            check_recycled(block, output, axis, width)
            own.recycled[own.n_recycled] = mtp_recycle(-1, output, axis, width, 0, width, NULL)
            later.recycled[own.n_recycled] = mtp_recycle(
                slot, -1, axis, width, column, stride, <float *> later.run.buffers[slot])
            own.n_recycled += 1
            column += width
    return 0


cdef int take_block(mtp_draft *loop) except -1:
    """Check whose rows the outputs of a block are, and note who chooses from them."""
    cdef mtp_draft_pass *own = &loop.passes[0]
    cdef mtp_draft_sequence *sequence
    cdef int64_t i, j, row = 0, at = 0, n = own.run.n_rows[MTP_OUTPUTS], n_rows
    cdef bint chooses = loop.n_passes == 1 or loop.most_passes > 0
    for i in range(loop.n_sequences):
        sequence = &loop.sequences[i]
        if sequence.k == 0:
            continue
        n_rows = sequence.k
        if loop.n_passes > 1:
            n_rows = check_rows_behind(&loop.rows, row, at, sequence.k, i)
        sequence.begin, sequence.first = row, row + n_rows - sequence.k
        if row + n_rows > n:
            raise BatchError("fewer outputs than drafts", where=f"sequence {i}",
                             wanted=row + n_rows, got=n)
        for j in range(row, row + n_rows):
            own.active[j] = i if chooses and j >= sequence.first else -1
        row, at = row + n_rows, at + sequence.k
    if row != n:
        raise BatchError("an output that no sequence reads", where="a block", wanted=row, got=n)
    return 0


cdef int64_t check_rows_behind(const mtp_run *rows, int64_t row, int64_t at, int64_t k,
                               int64_t i) except -1:
    """Check that the last k rows of a sequence of a post-head are outputs; return its rows."""
    cdef int64_t end = row, j
    while end < rows.n_rows[MTP_TOKENS] and rows.seq[end] == rows.seq[row]:
        end += 1
    for j in range(k):
        if (end - k < row or at + j >= rows.n_rows[MTP_OUTPUTS]
                or rows.outputs[at + j] != end - k + j):
            raise BatchError("outputs are the last rows of each sequence", where="a post-head",
                             wanted=f"{k} rows of sequence {i}")
    return end - row


cdef int take_sequences(mtp_draft *loop, wanted, tuple samplers, Executor first) except -1:
    """Check what each sequence needs, and lay out what the loop writes."""
    cdef const int32_t[::1] ids = wanted.token_ids, text
    cdef int64_t m = loop.n_sequences, i, most = 0
    cdef size_t size
    cdef int64_t n_axes = 0
    cdef Sampler sampler
    cdef mtp_draft_sequence *own
    n_prompt, p_min, index = wanted.n_prompt, wanted.p_min, wanted.indices
    history, k = tuple(wanted.history), tuple(wanted.k)  # for they are read twice
    for i in range(m):
        longest = len(history[i]) + max(k[i], 0)
        if longest > MOST_TOKENS:
            raise CapacityError("no memory for a draft", wanted=f"{longest} tokens")
        most = max(most, <int64_t> longest)
    if most > MOST_TOKENS // m:
        raise CapacityError("no memory for a draft", wanted=f"{m} times {most} tokens")
    for i in range(loop.n_passes):
        n_axes = max(n_axes, loop.passes[i].run.n_axes)
    size = mtp_draft_lay_out(loop, most, n_axes, NULL)
    mtp_draft_lay_out(loop, most, n_axes, first.reserve(size))
    for i in range(m):
        own, sampler = &loop.sequences[i], <Sampler?> samplers[i]
        text = history[i]
        own.n_history, own.n_prompt = text.shape[0], n_prompt[i]
        own.k, own.p_min, own.index = max(k[i], 0), p_min[i], index[i]
        if own.n_history + own.k > most:
            raise BatchError("a history that changed", where=f"sequence {i}", got=own.n_history)
        if own.n_history:
            memcpy(own.history, &text[0], own.n_history * sizeof(int32_t))
        memset(own.history + own.n_history, 0xff, own.k * sizeof(int32_t))  # no token yet
        own.settings, own.scratch = &sampler.settings, sampler.scratch.pointer
        last = own.index if own.index < 0 else own.index + own.k
        sampler._check(loop.n_logits, own.n_history, own.n_prompt, last, ids, None)
        loop.passes[0].active[i] = i
    for i in range(loop.n_passes):
        loop.passes[i].sampling.token_ids = NULL
        if ids is not None:
            loop.passes[i].sampling.token_ids = &ids[0]
    return 0


cdef int check_places(mtp_draft *loop, Executor only, pages) except -1:
    """Check that there are places for the rows of the plan that is repeated."""
    cdef int32s tables, length
    cdef int64_t i, number, step, n_pages, newest
    for number, group in enumerate(pages):
        if only.is_source(number):
            continue
        n_pages = only.n_pages[number]
        tables, length = int32s_of(group.tables, 2), int32s_of(group.length, 1)
        for i in range(loop.n_sequences):
            newest = only.run_state.outputs[i]
            for step in range(1, 0 if loop.in_place else loop.sequences[i].k):
                only.check_place(&tables, &length, n_pages, only.run_state.seq[newest],
                                 only.run_state.place[newest] + step, newest)
    check_states(loop, only)
    return 0


cdef int check_states(mtp_draft *loop, Executor only) except -1:
    """Check that there are states behind which the rows of the plan that is repeated come."""
    cdef int64_t i, step, newest, seq
    cdef const int32_t *table = only.run_state.states.table
    for i in range(loop.n_sequences if table != NULL else 0):
        newest = only.run_state.outputs[i]
        seq = only.run_state.seq[newest]
        for step in range(1, 0 if loop.in_place else loop.sequences[i].k):
            check_state(table + seq * MTP_STATE_COLUMNS, seq, only.run_state.place[newest] + step,
                        True)
    return 0


cdef int take_later_rows(mtp_draft *loop, int64_t number) except -1:
    """Check whose outputs a later pass has; copy what will change."""
    cdef mtp_draft_pass *own = &loop.passes[number]
    cdef mtp_draft_pass *first = &loop.passes[0]
    cdef int64_t i, seq, at = 0, n = own.run.n_rows[MTP_OUTPUTS]
    cdef mtp_recycle *taken
    for i in range(loop.n_sequences):
        if loop.sequences[i].k > loop.n_passes:
            raise BatchError("more drafts than passes", where=f"sequence {i}", wanted=loop.n_passes,
                             got=loop.sequences[i].k)
        if loop.sequences[i].k <= number:
            continue
        seq = first.run.seq[first.run.outputs[i]]
        if at == n or own.run.seq[own.run.outputs[at]] != seq:
            raise BatchError("one output a sequence that goes on", where=f"pass {number}",
                             wanted=f"sequence {seq} in output {at}")
        own.active[at] = i
        at += 1
    if at != n:
        raise BatchError("one output a sequence that goes on", where=f"pass {number}", wanted=at,
                         got=n)
    memcpy(own.tokens, own.run.tokens, own.n_rows * sizeof(int32_t))
    own.run.tokens = own.tokens
    for i in range(own.n_recycled):
        taken = &own.recycled[i]
        memcpy(taken.rows, own.run.buffers[taken.slot], own.n_rows * taken.width * sizeof(float))
        own.run.buffers[taken.slot] = taken.rows
    return 0
