"""The draft loop of ``c/plan/draft.h``; checks its arguments."""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from mtpcore._ext._buffers cimport floats, floats_of, int32s, int32s_of
from mtpcore._ext._interrupt cimport mtp_interrupt_begin
from mtpcore._ext._plan cimport (
    MTP_MOST_RECYCLED, MTP_OUTPUTS, MTP_STATE_COLUMNS, MTP_TOKENS, Executor, check_state, mtp_draft,
    mtp_draft_lay_out, mtp_draft_pass, mtp_draft_run, mtp_draft_sequence, mtp_plan_n_logits,
    mtp_now_ns, mtp_recycle, zeros,
)
from mtpcore._ext._sampling cimport Sampler

from mtpcore.errors import BackendError, BatchError, CapacityError

cdef int64_t MOST_TOKENS = 1 << 40  # of a history: sizes in bytes stay far from overflowing


def draft(wanted, list passes not None, given=()):
    cdef mtp_draft loop
    cdef int64_t begin, i, m = len(wanted.batch.outputs)
    cdef Executor one, executor
    if m == 0:
        return [], 0
    if not passes:
        raise BackendError("a draft without passes")
    passes = [(<Executor?> each[0], *each[1:]) for each in passes]
    memset(&loop, 0, sizeof(mtp_draft))
    loop.n_sequences, loop.n_passes, loop.in_place = m, len(passes), bool(wanted.in_place)
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
        take_given(&loop, passes[0][0], given)
        take_sequences(&loop, wanted, samplers, passes[0][0])
        check_given(&loop)
        if loop.n_passes == 1:
            check_places(&loop, passes[0][0], passes[0][2])
        for i in range(1, loop.n_passes):
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
    """Check that rows of so many values can be taken from an output."""
    if axis not in (MTP_TOKENS, MTP_OUTPUTS) or not 1 <= width < MOST_TOKENS:
        raise BackendError("no such rows to recycle", got=(axis, width))
    if own_values(executor, output) < width * executor.run_state.n_rows[axis]:
        raise BackendError("an output with less values than are recycled", got=output)
    return 0


cdef int check_fed(Executor executor, int64_t slot, int64_t width) except -1:
    """Check that rows of so many values are all that a slot reads."""
    cdef int64_t n_tokens = executor.run_state.n_rows[MTP_TOKENS]
    if (own_values(executor, slot) < width * n_tokens or executor.reaches[slot].is_written
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
    if number == 0 and executor.run_state.n_rows[MTP_OUTPUTS] != loop.n_sequences:
        raise BatchError("one output a sequence", where="pass 0", wanted=loop.n_sequences,
                         got=executor.run_state.n_rows[MTP_OUTPUTS])
    if (n_logits < 1 or own_values(executor, logits) < n_logits * executor.run_state.n_rows[1]
            or mtp_plan_n_logits(&executor.plan, logits) not in (0, n_logits)):
        raise BackendError("not a buffer of so many logits", where=f"pass {number}", got=n_logits)
    own.plan, own.run = &executor.plan, &executor.run_state
    own.sampling, own.sampling.logits = executor.sampling, logits
    own.n_rows = executor.run_state.n_rows[MTP_TOKENS] if number else loop.n_sequences
    for i, (slot, output, axis, width) in enumerate(recycled):
        check_recycled(executor, output, axis, width)
        if number or loop.n_passes == 1:
            check_fed(executor, slot, width)
        own.recycled[i] = mtp_recycle(slot, output, axis, width, NULL, 0, NULL)
    if number == 0:
        loop.n_logits, loop.n_recycled = n_logits, len(recycled)
    if executor.n_vocab and (not loop.n_tokens or executor.n_vocab < loop.n_tokens):
        loop.n_tokens = executor.n_vocab
    if not (executor.plan.n_threads == first.plan.n_threads and n_logits == loop.n_logits
            and len(recycled) == loop.n_recycled):
        raise BackendError("passes of one draft that differ", where=f"pass {number}",
                           wanted="threads, logits and slots of the first one")
    for i in range(loop.n_recycled):
        taken = &own.recycled[i]
        if taken.width != loop.passes[0].recycled[i].width:
            raise BackendError("a slot of another width", where=f"pass {number}, slot {i}",
                               wanted=loop.passes[0].recycled[i].width, got=taken.width)
    return 0


cdef int check_room(int64_t n_slots) except -1:
    """Check that the loop feeds so many slots."""
    if n_slots > MTP_MOST_RECYCLED:
        raise CapacityError("too many slots are fed", got=n_slots,
                            wanted=f"{MTP_MOST_RECYCLED} at most", fix="join some in one slot")
    return 0


cdef int take_given(mtp_draft *loop, Executor only, given) except -1:
    """Check rows that are known beforehand, of a plan that is repeated; note where they are."""
    cdef floats rows
    cdef int64_t m, n, width
    if given and loop.n_passes > 1:
        raise BackendError("rows are given to one plan that is repeated", got=loop.n_passes)
    check_room(loop.n_recycled + len(given))
    for slot, array in given:
        m, n, width = array.shape
        if m != loop.n_sequences or width < 1:
            raise BackendError("not rows of each sequence", wanted=loop.n_sequences,
                               got=array.shape)
        check_fed(only, slot, width)
        rows = floats_of(array, False)
        loop.passes[0].recycled[loop.n_recycled] = mtp_recycle(
            slot, -1, MTP_OUTPUTS, width, rows.data, n, NULL)
        loop.n_recycled += 1
    return 0


cdef int check_given(mtp_draft *loop) except -1:
    """Check that rows are given for all passes."""
    cdef int64_t i, s
    for s in range(loop.n_recycled):
        for i in range(loop.n_sequences if loop.passes[0].recycled[s].given != NULL else 0):
            if loop.sequences[i].k > loop.passes[0].recycled[s].n_given:
                raise BatchError("rows are given for all passes", where=f"sequence {i}",
                                 wanted=loop.sequences[i].k,
                                 got=loop.passes[0].recycled[s].n_given)
    return 0


cdef int take_sequences(mtp_draft *loop, wanted, tuple samplers, Executor first) except -1:
    """Check what each sequence needs, and lay out what the loop writes."""
    cdef const int32_t[::1] ids = wanted.token_ids, text
    cdef int64_t m = loop.n_sequences, i, most = 0
    cdef size_t size
    cdef int64_t n_axes = first.run_state.n_axes
    cdef Sampler sampler
    cdef mtp_draft_sequence *own
    n_prompt, p_min, index = wanted.n_prompt, wanted.p_min, wanted.indices
    history, k = tuple(wanted.history), tuple(wanted.k)  # for they are read twice
    for i in range(m):
        longest = len(history[i]) + max(k[i], 0)
        if longest > MOST_TOKENS:
            raise CapacityError("no memory for a draft", wanted=f"{longest} tokens")
        most = max(most, <int64_t> longest)
    size = mtp_draft_lay_out(loop, most, n_axes, NULL)
    mtp_draft_lay_out(loop, most, n_axes, first.reserve(size))
    for i in range(m):
        own, sampler = &loop.sequences[i], <Sampler?> samplers[i]
        text = history[i]
        own.n_history, own.n_prompt = text.shape[0], n_prompt[i]
        own.k, own.p_min, own.index = k[i], p_min[i], index[i]
        if own.n_history + max(own.k, 0) > most:
            raise BatchError("a history that changed", where=f"sequence {i}", got=own.n_history)
        if own.n_history:
            memcpy(own.history, &text[0], own.n_history * sizeof(int32_t))
        own.settings, own.scratch = &sampler.settings, sampler.scratch.pointer
        last = own.index if own.index < 0 else own.index + max(own.k, 0)
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
    for i in range(loop.n_recycled):
        taken = &own.recycled[i]
        memcpy(taken.rows, own.run.buffers[taken.slot], own.n_rows * taken.width * sizeof(float))
        own.run.buffers[taken.slot] = taken.rows
    return 0
