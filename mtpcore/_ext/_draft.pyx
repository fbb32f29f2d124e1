"""The loop of ``c/plan/draft.h``; checks its arguments."""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from mtpcore._ext._buffers cimport floats, floats_of
from mtpcore._ext._interrupt cimport mtp_interrupt_begin
from mtpcore._ext._plan cimport (
    MTP_BEST, MTP_CHOICE, MTP_KNOWN, MTP_MOST_SLOTS, MTP_OF_DRAFT, MTP_OUTPUTS, MTP_TOKENS,
    Executor, mtp_best, mtp_draft_token, mtp_feed, mtp_fill, mtp_made, mtp_now_ns, mtp_pick,
    mtp_plan_n_logits, mtp_run, mtp_schedule, mtp_schedule_lay_out, mtp_schedule_run, mtp_slot,
    mtp_stage, mtp_text, zeros,
)
from mtpcore._ext._sampling cimport Sampler

from mtpcore.errors import BackendError, BatchError, CapacityError

cdef int64_t MOST = 1 << 30  # rows, drafts and columns: sizes in bytes stay far from overflowing
cdef int64_t MOST_TOKENS = 1 << 40  # of all histories


def run(texts, drafts, bests, list stages not None, int64_t n_names, token_ids):
    cdef mtp_schedule loop
    cdef int64_t begin, i, n_members = 0
    cdef Executor one, first
    if not stages:
        raise BackendError("a schedule without stages")
    for stage in stages:
        if not isinstance(stage["executor"], Executor):
            raise TypeError(f"no executor: {stage['executor']!r}")
    texts, drafts = tuple(texts), tuple(drafts)
    bests = [(tuple(candidates), tuple(best), goes_on) for candidates, best, goes_on in bests]
    for candidates, best, _ in bests:
        n_members += len(candidates) + len(best)
    executors = list(dict.fromkeys(stage["executor"] for stage in stages))
    first = stages[0]["executor"]
    memset(&loop, 0, sizeof(mtp_schedule))
    loop.n_texts, loop.n_drafts, loop.n_stages = len(texts), len(drafts), len(stages)
    loop.n_bests, loop.n_names, loop.n_ranked = len(bests), n_names, 1
    running, taken = [], ()
    try:
        for one in executors:
            if one.is_running:
                raise BackendError("a plan runs one batch at a time")
            running.append(one)
            one.is_running = True
        loop.stages = <mtp_stage *> zeros(loop.n_stages, sizeof(mtp_stage))
        for i in range(loop.n_stages):
            measure(&loop, i, stages[i], first)
        lay_out(&loop, texts, n_members, first)
        take_texts(&loop, texts, token_ids)
        take_bests(&loop, bests)
        take_drafts(&loop, drafts)
        for i in range(loop.n_stages - 1, -1, -1):  # the first one of a plan last: it stays
            take_stage(&loop, i, stages[i], token_ids)
        check_fills(&loop)
        check_samplers(&loop, texts, token_ids)
        for text in texts:
            (<Sampler> text.sampler)._check_scratch()
        taken = texts
        for text in taken:
            (<Sampler> text.sampler).scratch.is_taken = True
        for i in range(loop.n_stages):
            loop.stages[i].run.interrupt = &first.interrupt
        mtp_interrupt_begin(&first.interrupt)
        for one in executors:
            with nogil:
                one.pack_before_run(&first.interrupt)
        begin = mtp_now_ns()
        with nogil:
            mtp_schedule_run(&loop)
        for one in executors:
            one.run_ns = (mtp_now_ns() - begin) // len(executors)
        first.raise_interrupt()
        return ([loop.drafts[i].token for i in range(loop.n_drafts)],
                [loop.drafts[i].best_of if loop.drafts[i].token >= 0 else i
                 for i in range(loop.n_drafts)],
                [loop.stages[i].has_run != 0 for i in range(loop.n_stages)])
    finally:
        for text in taken:
            (<Sampler> text.sampler).scratch.is_taken = False
        for one in running:
            one.is_running = False
        free(loop.stages)


cdef int64_t count(what, of, int64_t most=MOST) except -1:
    """Return how many there are."""
    cdef int64_t n = len(of)
    if n > most:
        raise CapacityError(f"too many {what}", wanted=f"at most {most}", got=n)
    return n


cdef int measure(mtp_schedule *loop, int64_t number, stage, Executor first) except -1:
    """Note how much memory a stage needs, and what it is made of."""
    cdef mtp_stage *own = &loop.stages[number]
    cdef Executor executor = stage["executor"]
    cdef int64_t rank
    batch = stage["batch"]
    for _, _, rank in stage["picks"]:
        if not MTP_CHOICE <= rank < MOST:
            raise BatchError("a rank from 0 on", where=f"stage {number}", got=rank)
        loop.n_ranked = max(loop.n_ranked, rank + 1)
    own.n_rows, own.n_outputs = count("rows", batch.tokens), count("outputs", batch.outputs)
    own.n_axes = batch.positions.shape[1]
    own.n_fills, own.n_picks = count("fills", stage["fills"]), count("picks", stage["picks"])
    own.n_slots = count("slots", stage["slots"], MTP_MOST_SLOTS)
    own.n_feeds = count("parts of slots", stage["feeds"], MTP_MOST_SLOTS)
    own.repeats, own.is_given = max(stage["repeats"], 0), bool(stage["is_given"])
    own.runs_whole, own.ends_at_nan = bool(stage["runs_whole"]), bool(stage["ends_at_nan"])
    own.kept_width = sum([width for _, _, width in stage["made"]]) if stage["is_kept"] else 0
    own.plan, own.run, own.sampling = &executor.plan, &executor.run_state, executor.sampling
    if not 0 <= own.kept_width < MOST or not 1 <= own.n_axes < MOST:
        raise BackendError("impossible size", where=f"stage {number}")
    if own.is_given and own.n_fills:
        raise BackendError("a stage with rows of its own and fills", where=f"stage {number}")
    if executor.plan.n_threads != first.plan.n_threads:
        raise BackendError("stages for other threads", where=f"stage {number}")
    return 0


cdef int lay_out(mtp_schedule *loop, tuple texts, int64_t n_members, Executor first) except -1:
    """Lay out what the loop reads and writes."""
    cdef int64_t most = 0, longest
    cdef size_t size
    for text in texts:
        longest = len(text.history) + loop.n_drafts
        most = max(most, longest)
    if most > MOST_TOKENS // max(loop.n_texts, 1):
        raise CapacityError("no memory for a draft", wanted=f"{loop.n_texts} times {most} tokens")
    size = mtp_schedule_lay_out(loop, most, n_members, NULL)
    mtp_schedule_lay_out(loop, most, n_members, first.reserve(size))
    return 0


cdef int take_texts(mtp_schedule *loop, tuple texts, token_ids) except -1:
    """Note what chooses drafts, and after which tokens."""
    cdef const int32_t[::1] history
    cdef mtp_text *own
    cdef Sampler sampler
    cdef int64_t i
    for i, text in enumerate(texts):
        own, sampler, history = &loop.texts[i], <Sampler?> text.sampler, text.history
        if history.shape[0] > MOST_TOKENS:
            raise CapacityError("no memory for a draft", wanted=f"{history.shape[0]} tokens")
        own.n_history, own.n_prompt = history.shape[0], text.n_prompt
        own.index, own.p_min = text.index, text.p_min
        if own.n_history:
            memcpy(own.history, &history[0], own.n_history * sizeof(int32_t))
        own.settings, own.scratch = &sampler.settings, sampler.scratch.pointer
    return 0


cdef int take_bests(mtp_schedule *loop, list bests) except -1:
    """Note which drafts are the best of others: until they are found the first candidates."""
    cdef mtp_best *own
    cdef mtp_draft_token *draft
    cdef int64_t i, number, at = 0
    for i in range(loop.n_drafts):
        memset(&loop.drafts[i], 0, sizeof(mtp_draft_token))
        loop.drafts[i].best_of, loop.drafts[i].is_open, loop.row_of[i] = i, True, -1
    for i in range(loop.n_bests):
        candidates, best, goes_on = bests[i]
        own = &loop.bests[i]
        own.goes_on, own.stage, own.pick = bool(goes_on), -1, -1
        own.n_candidates, own.n_drafts = len(candidates), len(best)
        own.candidates, own.drafts = loop.members + at, loop.members + at + own.n_candidates
        for number in candidates + best:
            if not 0 <= number < loop.n_drafts:
                raise BatchError("the best of drafts of one text before them", where=f"best {i}",
                                 got=number)
            loop.members[at] = number
            at += 1
        if not candidates or not best or max(candidates) >= min(best):
            raise BatchError("the best of drafts of one text before them", where=f"best {i}",
                             got=(candidates, best))
        for number in best:
            draft = &loop.drafts[number]
            if draft.parent == MTP_BEST:
                raise BatchError("a draft that is the best twice", where=f"best {i}", got=number)
            draft.parent, draft.best_of, draft.is_open = MTP_BEST, own.candidates[0], own.goes_on
    return 0


cdef int take_drafts(mtp_schedule *loop, tuple drafts) except -1:
    """Note which draft comes after which."""
    cdef mtp_draft_token *own
    cdef mtp_best *best
    cdef int64_t i, j, text, parent
    for i in range(loop.n_drafts):
        own = &loop.drafts[i]
        text, parent = drafts[i]
        if not (0 <= text < loop.n_texts and MTP_BEST <= parent < i
                and (parent == MTP_BEST) == (own.parent == MTP_BEST)
                and (parent < 0 or loop.drafts[parent].text == text)):
            raise BatchError("a draft of no text, or after none before it", where=f"draft {i}",
                             got=(text, parent))
        if parent >= 0 and not loop.drafts[parent].is_open:
            raise BatchError("a draft after one that does not go on", got=i)
        own.text, own.parent, own.token = text, parent, -1
        if parent == MTP_BEST:
            own.depth = loop.drafts[own.best_of].depth
            own.best_of = i
        elif parent >= 0:
            own.depth = loop.drafts[parent].depth + 1
    for i in range(loop.n_bests):
        best = &loop.bests[i]
        for j in range(best.n_candidates + best.n_drafts):  # which lie together
            if loop.drafts[best.candidates[j]].text != loop.drafts[best.candidates[0]].text:
                raise BatchError("the best of drafts of one text before them", where=f"best {i}")
    return 0


cdef int64_t own_values(Executor executor, int64_t buffer):
    """Return how many values the array of a buffer outside the arena has; 0 where there is none."""
    if not 0 <= buffer < executor.plan.n_buffers or not executor.reaches[buffer].is_outside:
        return 0
    return max(executor.reaches[buffer].given, 0)


cdef int take_stage(mtp_schedule *loop, int64_t number, stage, token_ids) except -1:
    """Check a stage by itself, and copy what it says."""
    cdef mtp_stage *own = &loop.stages[number]
    cdef Executor executor = stage["executor"]
    cdef int64_t i, n_logits = stage["n_logits"], logits = stage["logits"]
    cdef const int32_t[::1] ids = token_ids
    batch = stage["batch"]
    executor.settle()
    executor.take_rows(batch, stage["pages"], stage["states"])
    executor.take_arrays(stage["external"], batch.embeddings is not None, -1)
    if (own.run.n_rows[MTP_TOKENS] != own.n_rows or own.run.n_rows[MTP_OUTPUTS] != own.n_outputs
            or own.run.n_axes != own.n_axes):
        raise BatchError("a batch that changed", where=f"stage {number}")
    copy_rows(own)
    if own.n_picks and (n_logits < 1 or own_values(executor, logits) < n_logits * own.n_outputs
                        or mtp_plan_n_logits(&executor.plan, logits) not in (0, n_logits)):
        raise BackendError("a buffer without room for the logits", where=f"stage {number}",
                           got=n_logits)
    if own.n_picks and loop.n_logits not in (0, n_logits):
        raise BackendError("stages with other numbers of logits", where=f"stage {number}",
                           wanted=loop.n_logits, got=n_logits)
    if own.n_picks:
        loop.n_logits = n_logits
        own.sampling.logits = logits
    own.sampling.token_ids = NULL
    if ids is not None and ids.shape[0]:
        own.sampling.token_ids = &ids[0]
    for i in range(own.n_fills):
        row, draft, source, output = stage["fills"][i]
        own.fills[i] = mtp_fill(row, draft, source, output)
    for i in range(own.n_picks):
        output, draft, rank = stage["picks"][i]
        own.picks[i] = mtp_pick(output, draft, rank)
    take_made(loop, own, executor, stage["made"])
    take_slots(loop, own, executor, stage, number)
    if executor.n_vocab and any([draft != MTP_KNOWN for _, draft, _, _ in stage["fills"]]) and not (
            0 < loop.n_tokens <= executor.n_vocab):
        loop.n_tokens = executor.n_vocab
    return 0


cdef int copy_rows(mtp_stage *own) except -1:
    """Copy a batch, and find which row of it each comes after."""
    cdef int64_t row, before, n = own.n_rows
    cdef const mtp_run *run = own.run
    memcpy(own.tokens, run.tokens, n * sizeof(int32_t))
    memcpy(own.seq, run.seq, n * sizeof(int32_t))
    memcpy(own.place, run.place, n * sizeof(int32_t))
    memcpy(own.positions, run.positions, n * own.n_axes * sizeof(int32_t))
    memcpy(own.outputs, run.outputs, own.n_outputs * sizeof(int32_t))
    if run.until != NULL:
        memcpy(own.until, run.until, n * sizeof(int32_t))
    else:
        own.until = NULL
    own.is_tree = run.parent != NULL
    for row in range(n):
        before = row - 1
        while before >= 0 and own.seq[before] != own.seq[row]:
            before -= 1
        own.before[row] = own.parent[row] = run.parent[row] if own.is_tree else before
    for row in range(own.n_outputs):
        own.at[row] = row if own.is_given else -1
        own.row[row] = own.outputs[row]
    return 0


cdef int take_made(mtp_schedule *loop, mtp_stage *own, Executor executor, names) except -1:
    """Note the outputs of a stage that may feed others."""
    cdef int64_t i, buffer, axis, width, column = 0
    if len(names) != loop.n_names:
        raise BackendError("not an output for each name", wanted=loop.n_names, got=len(names))
    for i in range(loop.n_names):
        buffer, axis, width = names[i]
        if buffer >= 0 and (axis not in (MTP_TOKENS, MTP_OUTPUTS) or not 1 <= width < MOST
                            or own_values(executor, buffer) < width * own.run.n_rows[axis]):
            raise BackendError("no such rows to feed slots", got=(buffer, axis, width))
        own.made[i] = mtp_made(max(buffer, -1), axis, width, column)
        column += width
    return 0


cdef int take_slots(mtp_schedule *loop, mtp_stage *own, Executor executor, stage,
                    int64_t number) except -1:
    """Note the slots whose rows the loop writes, and which names feed them."""
    cdef int64_t i, buffer, width, slot, name, column
    cdef floats given
    for i in range(own.n_slots):
        buffer, width, known = stage["slots"][i]
        if (not 1 <= width < MOST or own_values(executor, buffer) < max(width * own.n_rows, 1)
                or executor.reaches[buffer].is_written
                or executor.reaches[buffer].row_stride[MTP_TOKENS] > width
                or executor.reaches[buffer].end[MTP_TOKENS] > width
                or executor.reaches[buffer].end[MTP_OUTPUTS]):
            raise BackendError("a slot with rows of another width than it is fed", got=buffer)
        own.slots[i] = mtp_slot(buffer, width, NULL, <float *> own.run.buffers[buffer])
        if known is not None:
            given = floats_of(known, False)
            if given.n < width * own.n_rows:
                raise BatchError("array does not fit the rows", where=f"stage {number}, slot {i}",
                                 wanted=f"{width * own.n_rows} values", got=given.n)
            own.slots[i].given = given.data
    for i in range(own.n_feeds):
        slot, name, column = stage["feeds"][i]
        if not (0 <= slot < own.n_slots and 0 <= name < loop.n_names and 0 <= column < MOST):
            raise BackendError("no such slot or output", where=f"stage {number}", got=(slot, name))
        own.feeds[i] = mtp_feed(slot, name, column)
    return 0


cdef int check_fills(mtp_schedule *loop) except -1:
    """Check that fills and picks say what can be: as ``check_schedule`` of the definition does."""
    cdef int64_t s, i, n_found = 0
    find_last(loop)
    for s in range(loop.n_stages):
        check_slots(loop, s)
        if loop.stages[s].is_tree:
            check_tree(loop, s)
        n_found = check_picks(loop, s, n_found)
    for i in range(loop.n_drafts):
        if loop.drafts[i].token < 0:
            raise BatchError("a draft that nothing chooses", got=i)
        loop.drafts[i].token = -1
    return 0


cdef int find_last(mtp_schedule *loop) except -1:
    """Note which pick is the last one of each best's candidates; check these."""
    cdef int64_t s, i, j, number, before = -1, pick = -1
    cdef mtp_draft_token *draft
    cdef mtp_best *best
    for i in range(loop.n_drafts):
        loop.drafts[i].stage = -1
    for s in range(loop.n_stages):
        for i in range(loop.stages[s].n_picks):
            number = loop.stages[s].picks[i].draft
            if not 0 <= number < loop.n_drafts:
                raise BatchError("no output, or a draft that is chosen elsewhere",
                                 where=f"stage {s}", got=number)
            if loop.stages[s].picks[i].rank != MTP_CHOICE:
                loop.drafts[number].stage, loop.drafts[number].output = s, i
    for i in range(loop.n_bests):
        best = &loop.bests[i]
        for j in range(best.n_candidates):
            draft = &loop.drafts[best.candidates[j]]
            if draft.stage < 0 or (best.goes_on and j and (
                    draft.stage != best.stage
                    or draft.depth != loop.drafts[best.candidates[0]].depth)):
                raise BatchError(
                    "candidates that are ranked, those of drafts that go on by one stage",
                    where=f"best {i}", got=best.candidates[j])
            if (draft.stage, draft.output) > (best.stage, best.pick):
                best.stage, best.pick = draft.stage, draft.output
        if (best.stage, best.pick) < (before, pick):
            raise BatchError("bests in the order in which they are found", where=f"best {i}")
        before, pick = best.stage, best.pick
    for i in range(loop.n_drafts):
        loop.drafts[i].stage = 0
    return 0


cdef int64_t check_picks(mtp_schedule *loop, int64_t s, int64_t n_found) except -1:
    """Check which drafts a stage chooses, and note it: from here on they are there.

    ``n_found`` bests are found before; returns how many are now.
    """
    cdef mtp_stage *stage = &loop.stages[s]
    cdef mtp_draft_token *draft
    cdef mtp_best *best
    cdef int64_t i, j
    cdef bint is_first, is_ranked
    memset(stage.is_finite, 0, stage.n_outputs)  # 1: an output chooses, 2: it ranks
    for i in range(stage.n_picks):
        output, number = stage.picks[i].output, stage.picks[i].draft
        is_ranked = stage.picks[i].rank != MTP_CHOICE
        draft = &loop.drafts[number]
        is_first = draft.token < 0
        if stage.repeats:
            is_first = not is_first and draft.stage < s
            draft.is_anew = True
        if not is_first or not 0 <= output < stage.n_outputs or draft.parent == MTP_BEST:
            raise BatchError("no output, or a draft that is chosen elsewhere", where=f"stage {s}",
                             wanted=f"outputs 0..{stage.n_outputs - 1}", got=(output, number))
        if draft.parent >= 0 and loop.drafts[draft.parent].token < 0:
            raise BatchError("a draft before the one before it", where=f"stage {s}", got=number)
        if is_ranked and stage.repeats:
            raise BatchError("a rank from 0 on, of drafts not chosen anew", where=f"stage {s}",
                             got=stage.picks[i].rank)
        if stage.is_finite[output] == 1 or (stage.is_finite[output] and not is_ranked):
            raise BatchError("an output that chooses twice", where=f"stage {s}", got=output)
        stage.is_finite[output] = 2 if is_ranked else 1
        draft.stage, draft.token = s, 0
        while n_found < loop.n_bests:
            best = &loop.bests[n_found]
            if best.stage != s or best.pick != i:
                break
            for j in range(best.n_drafts):
                loop.drafts[best.drafts[j]].stage, loop.drafts[best.drafts[j]].token = s, 0
            n_found += 1
    return n_found


cdef int check_tree(mtp_schedule *loop, int64_t s) except -1:
    """Check that each row of a tree can only come after rows of its sequence before it."""
    cdef mtp_stage *stage = &loop.stages[s]
    cdef mtp_best *best
    cdef mtp_fill *fill
    cdef int64_t i, j, k
    if stage.repeats:
        raise BatchError("a tree does not repeat", where=f"stage {s}")
    for i in range(stage.n_fills):
        fill = &stage.fills[i]
        if fill.draft != MTP_KNOWN:
            if loop.row_of[fill.draft] >= 0:
                raise BatchError("a draft in two rows of a tree", where=f"stage {s}",
                                 got=fill.draft)
            loop.row_of[fill.draft] = fill.row
    for i in range(stage.n_fills):
        if stage.fills[i].draft != MTP_KNOWN:
            check_parent(loop, stage, stage.fills[i].row, loop.drafts[stage.fills[i].draft].parent)
    for i in range(loop.n_bests):
        best = &loop.bests[i]
        for j in range(best.n_drafts):
            for k in range(best.n_candidates if loop.row_of[best.drafts[j]] >= 0 else 0):
                check_parent(loop, stage, loop.row_of[best.drafts[j]],
                             loop.drafts[best.candidates[k]].parent)
    for i in range(stage.n_fills):
        if stage.fills[i].draft != MTP_KNOWN:
            loop.row_of[stage.fills[i].draft] = -1
    return 0


cdef int check_parent(mtp_schedule *loop, mtp_stage *stage, int64_t row, int64_t draft) except -1:
    """Check the row of the draft before that of a row, if it has one."""
    cdef int64_t before = loop.row_of[draft] if draft >= 0 else -1
    if before >= row or (before >= 0 and stage.seq[before] != stage.seq[row]):
        raise BatchError("a row of a tree comes after a row of its sequence before it",
                         where=f"row {row}", got=before)
    return 0


cdef int check_samplers(mtp_schedule *loop, tuple texts, token_ids) except -1:
    """Check that samplers can choose of such logits, after such texts."""
    cdef const int32_t[::1] ids = token_ids
    cdef const mtp_text *own
    cdef int64_t i, last
    for i in range(loop.n_texts if loop.n_logits else 0):
        own = &loop.texts[i]
        last = own.index if own.index < 0 else own.index + loop.n_drafts
        (<Sampler> texts[i].sampler)._check(loop.n_logits, own.n_history, own.n_prompt, last, ids,
                                            None)
    return 0


cdef int check_slots(mtp_schedule *loop, int64_t s) except -1:
    """Check that each slot of a stage that its loop writes has rows, of its width."""
    cdef mtp_stage *stage = &loop.stages[s]
    cdef int64_t i, j, n_fed = 0
    cdef bint is_fed
    for i in range(stage.n_fills):
        n_fed += check_fill(loop, s, i)
    for i in range(stage.n_slots):
        is_fed = False
        for j in range(stage.n_feeds):
            is_fed |= stage.feeds[j].slot == i
        if stage.slots[i].given == NULL and (not is_fed or n_fed < stage.n_rows):
            raise BatchError("a slot that nothing feeds", where=f"stage {s}, slot {i}",
                             wanted="an output for it")
    return 0


cdef int check_fill(mtp_schedule *loop, int64_t s, int64_t i) except -1:
    """Check that what a row gets is there before it; return whether its slots are fed."""
    cdef mtp_stage *stage = &loop.stages[s]
    cdef mtp_fill *fill = &stage.fills[i]
    cdef int64_t of = fill.stage, least = stage.fills[i - 1].row + 1 if i else 0
    where = f"stage {s}, fill {i}"
    if not least <= fill.row < stage.n_rows or not MTP_KNOWN <= fill.draft < loop.n_drafts:
        raise BatchError("fills by row, of drafts", where=where, got=(fill.row, fill.draft))
    if fill.draft >= 0 and loop.drafts[fill.draft].token < 0:
        raise BatchError("a draft before it is chosen", where=where, got=fill.draft)
    if fill.draft >= 0 and not loop.drafts[fill.draft].is_open:
        raise BatchError("a draft after one that does not go on", where=where, got=fill.draft)
    if of == MTP_KNOWN:
        return 0
    if of == MTP_OF_DRAFT:
        of = loop.drafts[fill.draft].stage if fill.draft >= 0 and not stage.repeats else s
    if not 0 <= of < s or (fill.stage != MTP_OF_DRAFT
                           and not 0 <= fill.output < loop.stages[of].n_outputs):
        raise BatchError("a row before it is made", where=where, got=(fill.stage, fill.output))
    check_feeds(stage, &loop.stages[of], where)
    return 1


cdef int check_feeds(mtp_stage *stage, mtp_stage *source, where) except -1:
    """Check that outputs of a stage fill slots of another one, without a gap."""
    cdef int64_t slot, j, column
    cdef const mtp_made *made
    for slot in range(stage.n_slots):
        column = 0
        for j in range(stage.n_feeds):
            if stage.feeds[j].slot != slot:
                continue
            made = &source.made[stage.feeds[j].name]
            if made.buffer < 0 or stage.feeds[j].column != column:
                column = -1
                break
            column += made.width
        if column not in (0, stage.slots[slot].width):
            raise BatchError("a slot is fed by outputs of its width", where=where,
                             wanted=stage.slots[slot].width, got=column)
    return 0
