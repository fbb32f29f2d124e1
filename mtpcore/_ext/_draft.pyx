"""Schedules in C: their checks, for all backends, and the loop of ``c/plan/draft.h``."""

from cpython.bytearray cimport PyByteArray_AS_STRING
from libc.stdint cimport int8_t, int32_t, int64_t
from libc.string cimport memcpy

from mtpcore._ext._buffers cimport floats, floats_of, int32s, int32s_of
from mtpcore._ext._interrupt cimport mtp_interrupt_begin
from mtpcore._ext._plan cimport (
    MTP_BEST, MTP_CHOICE, MTP_KNOWN, MTP_OF_DRAFT, MTP_OUTPUTS, MTP_TOKENS, Executor, mtp_best,
    mtp_draft_token, mtp_fill, mtp_kept, mtp_now_ns, mtp_part, mtp_pick, mtp_plan_n_logits, mtp_run,
    mtp_schedule, mtp_schedule_run, mtp_slot, mtp_stage, mtp_text,
)
from mtpcore._ext._sampling cimport Sampler

from mtpcore.errors import BackendError, BatchError, CapacityError

cdef int64_t MOST = 1 << 30  # ranks and outputs: they fit the numbers that the loop has
cdef int64_t CHUNK = 1 << 14  # bytes: a round takes some dozens of small arrays
cdef int64_t MOST_TOKENS = 1 << 40  # of all texts: sizes in bytes stay far from overflowing


def check(schedule):
    FlatSchedule(schedule)


def run(schedule, bindings):
    cdef FlatSchedule flat = FlatSchedule(schedule)
    return flat.run(bindings)


cdef class FlatSchedule:
    """A schedule that was checked, as the loop reads it; its parts lie in ``memory``."""

    cdef mtp_schedule loop
    cdef list memory
    cdef char *left  # what is free of its last part
    cdef int64_t n_left
    cdef tuple texts, stages
    cdef dict kinds  # of kept rows: their numbers, by the names of outputs
    cdef object token_ids

    def __init__(self, schedule):
        cdef mtp_schedule *loop = &self.loop
        cdef int64_t i, n_found = 0
        self.memory, self.token_ids = [], schedule.token_ids
        self.texts, self.stages = tuple(schedule.texts), tuple(schedule.stages)
        drafts, bests = tuple(schedule.drafts), tuple(schedule.bests)
        loop.n_texts, loop.n_stages = len(self.texts), len(self.stages)
        loop.n_drafts, loop.n_bests = len(drafts), len(bests)
        loop.drafts = <mtp_draft_token *> self.take(loop.n_drafts, sizeof(mtp_draft_token))
        loop.row_of = self.integers(loop.n_drafts)
        loop.bests = <mtp_best *> self.take(loop.n_bests, sizeof(mtp_best))
        loop.stages = <mtp_stage *> self.take(loop.n_stages, sizeof(mtp_stage))
        self.kinds = {}
        for stage in self.stages:
            for names in stage.feeds.values():
                self.kinds.setdefault(tuple(names), len(self.kinds))
        loop.n_kinds = len(self.kinds)
        loop.keeps_logits = any(["logits" in names for names in self.kinds])
        self.take_bests(bests)
        self.take_drafts(drafts)
        for i in range(loop.n_stages):
            self.take_picks(i)
        self.find_last()
        for i in range(loop.n_stages):
            self.take_batch(i)
            self.take_fills(i)
            if loop.stages[i].is_tree:
                self.check_tree(i)
            n_found = self.check_picks(i, n_found)
        for i in range(loop.n_drafts):
            if loop.drafts[i].token < 0:
                raise BatchError("a draft that nothing chooses", got=i)
            loop.drafts[i].token = -1

    cdef void *take(self, int64_t n, size_t size) except NULL:
        """Return n zeros of a size, which stay as long as the schedule does."""
        cdef char *taken
        cdef int64_t n_bytes = (max(n, 1) * <int64_t> size + 15) & ~15
        if n_bytes > self.n_left:
            self.n_left = max(n_bytes, CHUNK)
            chunk = bytearray(self.n_left)
            self.memory.append(chunk)
            self.left = PyByteArray_AS_STRING(chunk)
        taken = self.left
        self.left, self.n_left = self.left + n_bytes, self.n_left - n_bytes
        return taken

    cdef int32_t *integers(self, int64_t n) except NULL:
        return <int32_t *> self.take(n, sizeof(int32_t))

    cdef int take_bests(self, tuple bests) except -1:
        """Note which drafts are the best of others: until they are found the first candidates."""
        cdef mtp_best *own
        cdef mtp_draft_token *draft
        cdef int64_t i, j, number, n_drafts = self.loop.n_drafts
        for i in range(n_drafts):
            draft = &self.loop.drafts[i]
            draft.best_of, draft.is_open, draft.token, draft.stage = i, True, -1, -1
            self.loop.row_of[i] = -1
        for i in range(self.loop.n_bests):
            candidates, best, goes_on = bests[i]
            members = (*candidates, *best)
            own = &self.loop.bests[i]
            own.goes_on, own.stage, own.pick = bool(goes_on), -1, -1
            own.n_candidates, own.n_drafts = len(candidates), len(best)
            own.candidates = self.integers(len(members))
            own.drafts = own.candidates + own.n_candidates
            if (not candidates or not best or min(members) < 0 or max(members) >= n_drafts
                    or max(candidates) >= min(best)):
                raise BatchError("the best of drafts of one text before them", where=f"best {i}",
                                 got=(candidates, best))
            for j, number in enumerate(members):
                own.candidates[j] = number
            for number in best:
                draft = &self.loop.drafts[number]
                if draft.parent == MTP_BEST:
                    raise BatchError("a draft that is the best twice", where=f"best {i}",
                                     got=number)
                draft.parent, draft.best_of = MTP_BEST, own.candidates[0]
                draft.is_open = own.goes_on
        return 0

    cdef int take_drafts(self, tuple drafts) except -1:
        """Note which draft comes after which."""
        cdef mtp_draft_token *own
        cdef mtp_best *best
        cdef int64_t i, j, text, parent
        for i in range(self.loop.n_drafts):
            own = &self.loop.drafts[i]
            text, parent = drafts[i]
            if not (0 <= text < self.loop.n_texts and MTP_BEST <= parent < i
                    and (parent == MTP_BEST) == (own.parent == MTP_BEST)
                    and (parent < 0 or self.loop.drafts[parent].text == text)):
                raise BatchError(
                    "a draft of no text, or after none before it", where=f"draft {i}",
                    wanted=f"texts 0..{self.loop.n_texts - 1}, drafts before {i}",
                    got=(text, parent))
            if parent >= 0 and not self.loop.drafts[parent].is_open:
                raise BatchError("a draft after one that does not go on", got=i)
            own.text, own.parent = text, parent
            if parent == MTP_BEST:
                own.depth = self.loop.drafts[own.best_of].depth
                own.best_of = i
            elif parent >= 0:
                own.depth = self.loop.drafts[parent].depth + 1
        for i in range(self.loop.n_bests):
            best = &self.loop.bests[i]
            for j in range(best.n_candidates + best.n_drafts):  # which lie together
                if (self.loop.drafts[best.candidates[j]].text
                        != self.loop.drafts[best.candidates[0]].text):
                    raise BatchError("the best of drafts of one text before them",
                                     where=f"best {i}")
        return 0

    cdef int take_picks(self, int64_t s) except -1:
        """Note which outputs of a stage choose which drafts."""
        cdef mtp_stage *own = &self.loop.stages[s]
        cdef int64_t i, output, draft, rank
        stage = self.stages[s]
        own.repeats, own.runs_whole = max(stage.repeats, 0), bool(stage.runs_whole)
        own.ends_at_nan, own.n_picks = bool(stage.ends_at_nan), len(stage.picks)
        own.n_rows, own.n_outputs = len(stage.batch.tokens), len(stage.batch.outputs)
        own.picks = <mtp_pick *> self.take(own.n_picks, sizeof(mtp_pick))
        if own.n_picks and "logits" not in stage.plan.program.outputs:
            raise BatchError("a graph without logits cannot draft", where=f"stage {s}")
        for i, (output, draft, rank) in enumerate(stage.picks):
            if not (0 <= output < own.n_outputs and 0 <= draft < self.loop.n_drafts):
                raise BatchError(
                    "no output, or a draft that is chosen elsewhere", where=f"stage {s}",
                    wanted=f"outputs 0..{own.n_outputs - 1}", got=(output, draft))
            if not MTP_CHOICE <= rank < MOST or (rank != MTP_CHOICE and own.repeats):
                raise BatchError("a rank from 0 on, of drafts not chosen anew", where=f"stage {s}",
                                 got=rank)
            own.picks[i] = mtp_pick(output, draft, rank)
            if rank != MTP_CHOICE:
                self.loop.drafts[draft].stage, self.loop.drafts[draft].output = s, i
        return 0

    cdef int find_last(self) except -1:
        """Note which pick is the last one of each best's candidates; check these."""
        cdef int64_t i, j, before = -1, pick = -1
        cdef mtp_draft_token *draft
        cdef mtp_draft_token *first
        cdef mtp_best *best
        for i in range(self.loop.n_bests):
            best = &self.loop.bests[i]
            first = &self.loop.drafts[best.candidates[0]]
            for j in range(best.n_candidates):
                draft = &self.loop.drafts[best.candidates[j]]
                if draft.stage < 0 or (best.goes_on and (draft.stage != first.stage
                                                         or draft.depth != first.depth)):
                    raise BatchError(
                        "candidates that are ranked, those of drafts that go on by one stage",
                        where=f"best {i}", got=best.candidates[j])
                if (draft.stage, draft.output) > (best.stage, best.pick):
                    best.stage, best.pick = draft.stage, draft.output
            if (best.stage, best.pick) < (before, pick):
                raise BatchError("bests in the order in which they are found", where=f"best {i}")
            before, pick = best.stage, best.pick
        return 0

    cdef int take_batch(self, int64_t s) except -1:
        """Note the slots of a stage, and which row each of its rows comes after."""
        cdef mtp_stage *own = &self.loop.stages[s]
        cdef int64_t i, row, before, n = own.n_rows
        cdef int32s seq, parent
        stage, batch = self.stages[s], self.stages[s].batch
        if "codes" in stage.plan.program.inputs:
            raise BatchError("a graph that reads codes cannot draft", where=f"stage {s}")
        own.is_tree, own.n_axes = batch.parent is not None, batch.positions.shape[1]
        seq = int32s_of(batch.seq, 1)
        parent = int32s_of(batch.parent, 1) if own.is_tree else seq
        if seq.n != n or parent.n != n:
            raise BatchError("rows do not fit each other", where=f"stage {s}", wanted=n)
        own.seq = self.integers(n)
        own.parent = self.integers(n)
        own.before = self.integers(n)
        own.at = self.integers(own.n_outputs)
        own.kept = <mtp_kept *> self.take(self.loop.n_kinds, sizeof(mtp_kept))
        for i in range(own.n_outputs):
            own.at[i] = -1
        for row in range(n):
            own.seq[row] = seq.data[row]
            before = row - 1
            while before >= 0 and own.seq[before] != own.seq[row]:
                before -= 1
            if own.is_tree:
                before = parent.data[row]
            if not -1 <= before < row:
                raise BatchError("a parent is an earlier row of the sequence", where=f"row {row}",
                                 got=before)
            own.before[row] = own.parent[row] = before
        slots = stage.plan.program.slots()
        own.n_slots = len(slots)
        own.slots = <mtp_slot *> self.take(own.n_slots, sizeof(mtp_slot))
        for i, (slot, width) in enumerate(slots.items()):
            names = stage.feeds.get(slot)
            own.slots[i].width = width
            own.slots[i].kind = -1 if names is None else self.kinds[tuple(names)]
        return 0

    cdef int take_fills(self, int64_t s) except -1:
        """Note what rows of a stage get; check that it is there, and of their width."""
        cdef mtp_stage *own = &self.loop.stages[s]
        cdef int64_t i, row, draft, of, output, before = -1, n_fed = 0
        cdef bint is_there
        stage, where, feeders = self.stages[s], f"stage {s}", set()
        slots, given = stage.plan.program.slots(), stage.batch.slots
        if lost := stage.feeds.keys() - slots.keys():
            raise BatchError("slots that the graph does not have", where=where, got=sorted(lost))
        own.n_fills = len(stage.fills)
        own.fills = <mtp_fill *> self.take(own.n_fills, sizeof(mtp_fill))
        for i, (row, draft, of, output) in enumerate(stage.fills):
            if not before < row < own.n_rows:
                raise BatchError("fills by row", where=where, got=row,
                                 wanted=f"rows of 0..{own.n_rows - 1}, one after the other")
            before = row
            if draft != MTP_KNOWN and not (0 <= draft < self.loop.n_drafts
                                           and self.loop.drafts[draft].token >= 0):
                raise BatchError("a draft before it is chosen", where=f"{where}, row {row}",
                                 got=draft)
            if draft != MTP_KNOWN and not self.loop.drafts[draft].is_open:
                raise BatchError("a draft after one that does not go on",
                                 where=f"{where}, row {row}", got=draft)
            is_there = 0 <= of < s and 0 <= output < self.loop.stages[of].n_outputs
            if of == MTP_OF_DRAFT:  # which changes with each time that a stage repeats
                is_there = draft != MTP_KNOWN and own.repeats == 0
                of, output = self.loop.drafts[draft].stage if is_there else of, MTP_OF_DRAFT
            if of != MTP_KNOWN:
                if not is_there:
                    raise BatchError("a row before it is made", where=f"{where}, row {row}", got=of)
                feeders.add(of)
                n_fed += 1
            own.fills[i] = mtp_fill(row, draft, of, min(output, MOST))
        for of in feeders:
            for slot, names in stage.feeds.items():
                self.keep(of, tuple(names), slots[slot], f"{where}: feeds[{slot!r}]")
        missing = slots.keys() - given.keys()
        if missing and (n_fed < own.n_rows or missing - stage.feeds.keys()):
            raise BatchError("a slot that nothing feeds", where=where, got=sorted(missing),
                             wanted="an output for it")
        return 0

    cdef int keep(self, int64_t s, tuple names, int64_t width, where) except -1:
        """Let a stage keep outputs, side by side, that are as wide as a slot."""
        cdef mtp_stage *stage = &self.loop.stages[s]
        cdef mtp_kept *kept = &stage.kept[<int64_t> self.kinds[names]]
        cdef int64_t i, n = 0
        program = self.stages[s].plan.program
        shapes = [program.shape(name) for name in names if name in program.outputs]
        for i in range(len(shapes)):
            n += shapes[i][1]
        if len(shapes) < max(len(names), 1) or n != width:
            raise BatchError("a slot is fed by outputs of its width", where=where,
                             wanted=", ".join(program.outputs), got=names)
        if kept.rows == NULL:
            kept.width, kept.n_parts = width, len(shapes)
            kept.parts = <mtp_part *> self.take(kept.n_parts, sizeof(mtp_part))
            kept.is_finite = <int8_t *> self.take(stage.n_outputs, 1)
            kept.rows = <float *> self.take(stage.n_outputs * width, sizeof(float))
            for i, (axis, n, *_) in enumerate(shapes):
                is_of_outputs = axis == "n_outputs"
                kept.parts[i] = mtp_part(-1, MTP_OUTPUTS if is_of_outputs else MTP_TOKENS, n)
        return 0

    cdef int64_t check_picks(self, int64_t s, int64_t n_found) except -1:
        """Check which drafts a stage chooses, and note it: from here on they are there.

        ``n_found`` bests are found before; returns how many are now.
        """
        cdef mtp_stage *stage = &self.loop.stages[s]
        cdef mtp_draft_token *draft
        cdef mtp_best *best
        cdef int64_t i, j, output, number
        cdef bint is_first, is_ranked
        of_output = {}  # whether its drafts are ranked, and there may be several
        for i in range(stage.n_picks):
            output, number = stage.picks[i].output, stage.picks[i].draft
            is_ranked = stage.picks[i].rank != MTP_CHOICE
            draft = &self.loop.drafts[number]
            is_first = draft.token < 0
            if stage.repeats:
                is_first = not is_first and draft.stage < s
                draft.is_anew = True
            if not is_first or draft.parent == MTP_BEST:
                raise BatchError("no output, or a draft that is chosen elsewhere",
                                 where=f"stage {s}", got=(output, number))
            if draft.parent >= 0 and self.loop.drafts[draft.parent].token < 0:
                raise BatchError("a draft before the one before it", where=f"stage {s}",
                                 got=number)
            if not (of_output.setdefault(output, is_ranked) and is_ranked) and any(
                    [stage.picks[j].output == output for j in range(i)]):
                raise BatchError("an output that chooses twice", where=f"stage {s}", got=output)
            draft.stage, draft.token = s, 0
            while n_found < self.loop.n_bests:
                best = &self.loop.bests[n_found]
                if best.stage != s or best.pick != i:
                    break
                for j in range(best.n_drafts):
                    draft = &self.loop.drafts[best.drafts[j]]
                    draft.stage, draft.token = s, 0
                n_found += 1
        return n_found

    cdef int check_tree(self, int64_t s) except -1:
        """Check that each row of a tree can only come after rows of its sequence before it."""
        cdef mtp_stage *stage = &self.loop.stages[s]
        cdef mtp_best *best
        cdef int64_t i, j, k, draft
        if stage.repeats:
            raise BatchError("a tree does not repeat", where=f"stage {s}")
        for i in range(stage.n_fills):
            draft = stage.fills[i].draft
            if draft != MTP_KNOWN:
                if self.loop.row_of[draft] >= 0:
                    raise BatchError("a draft in two rows of a tree", where=f"stage {s}", got=draft)
                self.loop.row_of[draft] = stage.fills[i].row
        for i in range(stage.n_fills):
            if stage.fills[i].draft != MTP_KNOWN:
                self.check_parent(s, stage.fills[i].row,
                                  self.loop.drafts[stage.fills[i].draft].parent)
        for i in range(self.loop.n_bests):
            best = &self.loop.bests[i]
            for j in range(best.n_drafts):
                for k in range(best.n_candidates if self.loop.row_of[best.drafts[j]] >= 0 else 0):
                    self.check_parent(s, self.loop.row_of[best.drafts[j]],
                                      self.loop.drafts[best.candidates[k]].parent)
        for i in range(stage.n_fills):
            if stage.fills[i].draft != MTP_KNOWN:
                self.loop.row_of[stage.fills[i].draft] = -1
        return 0

    cdef int check_parent(self, int64_t s, int64_t row, int64_t draft) except -1:
        """Check the row of the draft before that of a row, if it has one."""
        cdef int64_t before = self.loop.row_of[draft] if draft >= 0 else -1
        cdef const int32_t *seq = self.loop.stages[s].seq
        if before >= row or (before >= 0 and seq[before] != seq[row]):
            raise BatchError("a row of a tree comes after a row of its sequence before it",
                             where=f"stage {s}, row {row}", got=before)
        return 0

    # The loop

    cdef object run(self, dict bindings):
        """Run it with what each plan is bound to; return what ``Drafts`` has."""
        cdef mtp_schedule *loop = &self.loop
        cdef Executor one, first
        cdef Sampler sampler
        cdef int64_t begin, i
        if not self.stages:
            raise BackendError("a schedule without stages")
        executors = [bound.executor for bound in bindings.values()]
        first = bindings[self.stages[0].plan].executor
        running, taken = [], []
        try:
            for one in executors:
                if one.is_running:
                    raise BackendError("a plan runs one batch at a time")
                running.append(one)
                one.is_running = True
            for i in range(loop.n_stages):
                self.bind(i, bindings[self.stages[i].plan], first)
            self.take_room()
            self.take_texts(first)
            for text in self.texts:
                sampler = text.sampler
                sampler._check_scratch()
                taken.append(sampler)
            for sampler in taken:
                sampler.scratch.is_taken = True
            mtp_interrupt_begin(&first.interrupt)
            for one in executors:
                with nogil:
                    one.pack_before_run(&first.interrupt)
            begin = mtp_now_ns()
            with nogil:
                mtp_schedule_run(loop)
            for one in executors:
                one.run_ns = (mtp_now_ns() - begin) // len(executors)
            first.raise_interrupt()
            return ([loop.drafts[i].token for i in range(loop.n_drafts)],
                    [loop.drafts[i].best_of if loop.drafts[i].token >= 0 else i
                     for i in range(loop.n_drafts)],
                    [loop.stages[i].has_run != 0 for i in range(loop.n_stages)])
        finally:
            for sampler in taken:
                sampler.scratch.is_taken = False
            for one in running:
                one.is_running = False

    cdef int bind(self, int64_t s, bound, Executor first) except -1:
        """Check the batch of a stage, copy it, and note the arrays that its plan reads and writes.
        """
        cdef mtp_stage *own = &self.loop.stages[s]
        cdef Executor executor = bound.executor
        cdef int64_t n_logits = bound.n_logits, logits = bound.logits
        cdef const int32_t[::1] ids = self.token_ids
        stage, batch, where = self.stages[s], self.stages[s].batch, f"stage {s}"
        if executor.plan.n_threads != first.plan.n_threads:
            raise BackendError("stages for other threads", where=where)
        executor.settle()
        executor.take_rows(batch, bound.pages, bound.states)
        rows, slots = bound.rows if stage.fills else batch.slots, stage.plan.program.slots()
        external = [(bound.slots[slot], rows[slot]) for slot in slots if slot in rows]
        if batch.embeddings is not None:
            external.append((bound.slots["embeddings"], batch.embeddings))
        executor.take_arrays(bound.outputs + external, batch.embeddings is not None, -1)
        own.plan, own.run, own.sampling = &executor.plan, &executor.run_state, executor.sampling
        own.run.interrupt = &first.interrupt
        self.copy_rows(own)
        if own.n_picks:
            if (n_logits < 1 or own_values(executor, logits) < n_logits * own.n_outputs
                    or mtp_plan_n_logits(&executor.plan, logits) not in (0, n_logits)):
                raise BackendError("a buffer without room for the logits", where=where,
                                   got=n_logits)
            if self.loop.n_logits not in (0, n_logits):
                raise BackendError("stages with other numbers of logits", where=where,
                                   wanted=self.loop.n_logits, got=n_logits)
            self.loop.n_logits, own.sampling.logits = n_logits, logits
        own.sampling.token_ids = NULL
        if ids is not None and ids.shape[0]:
            own.sampling.token_ids = &ids[0]
        self.bind_kept(own, executor, bound.made, where)
        self.bind_slots(own, executor, slots, bound.slots, batch.slots, where)
        if (executor.n_vocab and any([draft != MTP_KNOWN for _, draft, _, _ in stage.fills])
                and not 0 < self.loop.n_tokens <= executor.n_vocab):
            self.loop.n_tokens = executor.n_vocab
        return 0

    cdef int copy_rows(self, mtp_stage *own) except -1:
        """Copy a batch that the executor has checked."""
        cdef int64_t n = own.n_rows, m = own.n_outputs
        cdef const mtp_run *run = own.run
        if run.n_rows[MTP_TOKENS] != n or run.n_rows[MTP_OUTPUTS] != m or run.n_axes != own.n_axes:
            raise BatchError("a batch that changed")
        own.tokens = self.copied(run.tokens, n)
        own.seq = self.copied(run.seq, n)
        own.place = self.copied(run.place, n)
        own.positions = self.copied(run.positions, n * own.n_axes)
        own.outputs = self.copied(run.outputs, m)
        own.until = NULL if run.until == NULL else self.copied(run.until, n)
        return 0

    cdef int32_t *copied(self, const int32_t *values, int64_t n) except NULL:
        cdef int32_t *own = self.integers(n)
        memcpy(own, values, n * sizeof(int32_t))
        return own

    cdef int bind_kept(self, mtp_stage *own, Executor executor, dict made, where) except -1:
        """Note the buffers of what a stage keeps."""
        cdef mtp_kept *kept
        cdef mtp_part *part
        cdef int64_t i
        for names, kind in self.kinds.items():
            kept = &own.kept[<int64_t> kind]
            for i in range(kept.n_parts):
                part = &kept.parts[i]
                part.buffer = made[names[i]]
                if own_values(executor, part.buffer) < part.width * own.run.n_rows[part.axis]:
                    raise BackendError("no such rows to feed slots", where=where, got=names[i])
        return 0

    cdef int bind_slots(self, mtp_stage *own, Executor executor, slots, dict buffers, given,
                        where) except -1:
        """Note the slots whose rows the loop writes, or that the batch has."""
        cdef mtp_slot *slot
        cdef int64_t i
        cdef floats values
        for i, name in enumerate(slots):
            slot = &own.slots[i]
            slot.buffer = buffers[name]
            if name in given:
                values = floats_of(given[name], False)
                if values.n < slot.width * own.n_rows:
                    raise BatchError("array does not fit the rows", where=f"{where}, slot {name}",
                                     wanted=f"{slot.width * own.n_rows} values", got=values.n)
                slot.given = values.data
            if own.n_fills == 0:
                continue
            if (own_values(executor, slot.buffer) < slot.width * own.n_rows
                    or executor.reaches[slot.buffer].is_written
                    or executor.reaches[slot.buffer].row_stride[MTP_TOKENS] > slot.width
                    or executor.reaches[slot.buffer].end[MTP_TOKENS] > slot.width
                    or executor.reaches[slot.buffer].end[MTP_OUTPUTS]):
                raise BackendError("a slot with rows of another width than it is fed", where=where,
                                   got=name)
            slot.rows = <float *> own.run.buffers[slot.buffer]
        return 0

    cdef int take_room(self) except -1:
        """Take room for the rows of the stage that runs, and for what an output ranks."""
        cdef mtp_schedule *loop = &self.loop
        cdef int64_t i, j, n = 0, most_axes = 1, n_ranked = 1
        for i in range(loop.n_stages):
            n, most_axes = max(n, loop.stages[i].n_rows), max(most_axes, loop.stages[i].n_axes)
            for j in range(loop.stages[i].n_picks):
                n_ranked = max(n_ranked, loop.stages[i].picks[j].rank + 1)
        n_ranked = min(n_ranked, max(loop.n_logits, 1))
        loop.tokens, loop.seq, loop.place = self.integers(n), self.integers(n), self.integers(n)
        loop.parent, loop.until, loop.outputs = self.integers(n), self.integers(n), self.integers(n)
        loop.is_dead, loop.row_at = self.integers(n), self.integers(n)
        loop.positions = self.integers(n * most_axes)
        loop.ids = self.integers(n_ranked)
        loop.probabilities = <float *> self.take(n_ranked, sizeof(float))
        loop.shares = <double *> self.take(n_ranked, sizeof(double))
        return 0

    cdef int take_texts(self, Executor first) except -1:
        """Note what chooses drafts, and after which tokens; check that it can.

        Texts may be long: they are copied to memory that is kept from round to round.
        """
        cdef const int32_t[::1] ids = self.token_ids
        cdef int32s history
        cdef mtp_text *own
        cdef Sampler sampler
        cdef int64_t i, last, n_drafts = self.loop.n_drafts
        cdef int64_t n
        cdef int32_t *room
        n_tokens = sum([len(text.history) + n_drafts for text in self.texts])
        if n_tokens > MOST_TOKENS:
            raise CapacityError("no memory for a draft", wanted=f"{n_tokens} tokens")
        n = n_tokens
        room = <int32_t *> first.reserve(max(n, 1) * sizeof(int32_t))
        self.loop.texts = <mtp_text *> self.take(self.loop.n_texts, sizeof(mtp_text))
        for i, text in enumerate(self.texts):
            own, sampler, history = &self.loop.texts[i], text.sampler, int32s_of(text.history, 1)
            own.n_history, own.n_prompt = history.n, text.n_prompt
            own.index, own.p_min = text.index, text.p_min
            if history.n + n_drafts > n:
                raise BatchError("a text that changed", got=history.n)
            own.history, room, n = room, room + history.n + n_drafts, n - history.n - n_drafts
            memcpy(own.history, history.data, history.n * sizeof(int32_t))
            own.settings, own.scratch = &sampler.settings, sampler.scratch.pointer
            if self.loop.n_logits:
                last = own.index if own.index < 0 else own.index + n_drafts
                sampler._check(self.loop.n_logits, own.n_history, own.n_prompt, last, ids, None)
        return 0


cdef int64_t own_values(Executor executor, int64_t buffer):
    """Return how many values the array of a buffer outside the arena has; 0 where there is none."""
    if not 0 <= buffer < executor.plan.n_buffers or not executor.reaches[buffer].is_outside:
        return 0
    return max(executor.reaches[buffer].given, 0)
