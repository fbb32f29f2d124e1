"""Rounds in C: their checks, for all backends, and the loop of ``c/plan/draft.h``."""

from cpython.bytearray cimport PyByteArray_AS_STRING
from libc.stdint cimport int8_t, int32_t, int64_t
from libc.string cimport memcpy

from mtpcore._ext._buffers cimport floats, floats_of, int32s, int32s_of
from mtpcore._ext._interrupt cimport mtp_interrupt_begin
from mtpcore._ext._plan cimport (
    MTP_BEST, MTP_CHAIN, MTP_CHOICE, MTP_GIVEN, MTP_KNOWN, MTP_OF_DRAFT, MTP_OUTPUTS, MTP_TOKENS,
    MTP_TREE, Executor, mtp_best, mtp_draft_token, mtp_fill, mtp_kept, mtp_now_ns, mtp_part,
    mtp_pick, mtp_plan_n_logits, mtp_row_before, mtp_rows, mtp_run_take, mtp_schedule,
    mtp_schedule_run, mtp_slot, mtp_stage, mtp_stage_place, mtp_text,
)
from mtpcore._ext._sampling cimport Sampler

from mtpcore.errors import BackendError, BatchError, CapacityError

cdef int64_t MOST = 1 << 30  # ranks, outputs, rows: they fit the numbers that the loop has
cdef int64_t CHUNK = 1 << 12  # bytes: a round takes some dozens of small arrays
cdef int64_t MOST_TOKENS = 1 << 40  # of all texts: sizes in bytes stay far from overflowing

NUMBERS = ("codes", "adapters", "adapter_scales")  # which rows have in place of slots' values
FORMS = {"given": MTP_GIVEN, "chain": MTP_CHAIN, "tree": MTP_TREE}


def check(schedule):
    flat_of(schedule).take(schedule, False)


def run(schedule):
    return flat_of(schedule).take(schedule, True)


cdef FlatRound flat_of(schedule):
    """Return the round of a schedule, checked and taken; it is kept with the round.

    One that another thread has taken gets another beside it.
    """
    cdef FlatRound flat = schedule.round.__dict__.get("flat")
    programs = tuple([one.plan.program for one in schedule.passes])
    if flat is None or flat.is_taken or len(programs) != len(flat.programs) or any(
            [one is not other for one, other in zip(programs, flat.programs)]):
        flat = schedule.round.__dict__["flat"] = FlatRound(schedule.round, programs)
    flat.is_taken = True
    return flat


cdef class FlatRound:
    """A round that was checked, as the loop reads it; its parts lie in ``memory``.

    Those of a run come last, and are given up by the next one.
    """

    cdef mtp_schedule loop
    cdef mtp_draft_token *drafts  # as they are before a run
    cdef mtp_rows *given  # of the passes
    cdef int64_t *least  # outputs of the passes
    cdef int64_t n_texts, n_ranked
    cdef list memory
    cdef char *left  # what is free of its last part
    cdef int64_t n_left, n_kept
    cdef tuple stages, programs
    cdef dict kinds  # of kept rows: their numbers, by the names of outputs
    cdef bint is_taken

    def __init__(self, built, tuple programs):
        cdef mtp_schedule *loop = &self.loop
        cdef int64_t i, n_found = 0
        self.memory, self.programs, self.stages = [], programs, tuple(built.stages)
        drafts, bests = tuple(built.drafts), tuple(built.bests)
        loop.n_stages, loop.n_drafts, loop.n_bests = len(self.stages), len(drafts), len(bests)
        loop.drafts = <mtp_draft_token *> self.room(loop.n_drafts, sizeof(mtp_draft_token))
        self.drafts = <mtp_draft_token *> self.room(loop.n_drafts, sizeof(mtp_draft_token))
        loop.row_of = self.integers(loop.n_drafts)
        loop.bests = <mtp_best *> self.room(loop.n_bests, sizeof(mtp_best))
        loop.stages = <mtp_stage *> self.room(loop.n_stages, sizeof(mtp_stage))
        self.given = <mtp_rows *> self.room(len(programs), sizeof(mtp_rows))
        self.least = <int64_t *> self.room(len(programs), sizeof(int64_t))
        self.kinds = {}
        for stage in self.stages:
            for names in stage.feeds.values():
                self.kinds.setdefault(tuple(names), len(self.kinds))
        loop.n_kinds = len(self.kinds)
        loop.keeps_logits = any(["logits" in names for names in self.kinds])
        self.take_bests(bests)
        self.take_drafts(drafts)
        self.check_trees(drafts, bests)
        for i in range(loop.n_stages):
            self.take_stage(i)
            self.take_picks(i)
        self.find_last()
        for i in range(loop.n_stages):
            self.take_fills(i)
            n_found = self.check_picks(i, n_found)
        for i in range(loop.n_drafts):
            if loop.drafts[i].token < 0:
                raise BatchError("a draft that nothing chooses", got=i)
            loop.drafts[i].token = -1
        memcpy(self.drafts, loop.drafts, loop.n_drafts * sizeof(mtp_draft_token))
        self.n_kept = len(self.memory)

    cdef void *room(self, int64_t n, size_t size) except NULL:
        """Return n zeros of a size."""
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
        return <int32_t *> self.room(n, sizeof(int32_t))

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
            if not (0 <= text < MOST and MTP_BEST <= parent < i
                    and (parent == MTP_BEST) == (own.parent == MTP_BEST)
                    and (parent < 0 or self.loop.drafts[parent].text == text)):
                raise BatchError(
                    "a draft of no text, or after none before it", where=f"draft {i}",
                    wanted=f"drafts of it before {i}", got=(text, parent))
            if parent >= 0 and not self.loop.drafts[parent].is_open:
                raise BatchError("a draft after one that does not go on", got=i)
            own.text, own.parent = text, parent
            self.n_texts = max(self.n_texts, text + 1)
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

    cdef int check_trees(self, tuple drafts, tuple bests) except -1:
        """Refuse drafts to be verified that come after some that may not be.

        A draft is no more probable than the one before it, and of equal ones the first are taken.
        """
        of = {best: candidates for candidates, its, _ in bests for best in its}
        for i, (candidates, _, goes_on) in enumerate(bests):
            before = {-1}  # the pending token
            for number in candidates if not goes_on else ():
                parent = drafts[number][1]
                if not before.issuperset(of.get(parent, (parent,))):
                    raise BatchError("drafts to be verified after others that are none of them",
                                     where=f"best {i}", got=number,
                                     fix="name the draft before it, or all that may be it, first")
                before.add(number)
        return 0

    cdef int take_stage(self, int64_t s) except -1:
        """Note the rows and slots of a stage."""
        cdef mtp_stage *own = &self.loop.stages[s]
        cdef int64_t i
        stage, where = self.stages[s], f"stage {s}"
        if not 0 <= stage.graph < len(self.programs) or stage.rows not in FORMS:
            raise BatchError("a stage of no pass, or with rows of no kind", where=where,
                             wanted=f"passes 0..{len(self.programs) - 1}; {', '.join(FORMS)}",
                             got=(stage.graph, stage.rows))
        program = self.programs[stage.graph]
        given = {"codes", "adapters"} & program.inputs.keys()
        if given and (stage.rows != "given" or stage.fills):
            raise BatchError("rows of drafts have no such inputs", where=where, got=given)
        own.form, own.given = FORMS[stage.rows], &self.given[<int64_t> stage.graph]
        own.repeats, own.runs_whole = max(stage.repeats, 0), bool(stage.runs_whole)
        own.ends_at_nan, own.n_told = bool(stage.ends_at_nan), len(stage.fills)
        own.told = <mtp_fill *> self.room(own.n_told, sizeof(mtp_fill))
        own.fills = <mtp_fill *> self.room(own.n_told, sizeof(mtp_fill))
        own.kept = <mtp_kept *> self.room(self.loop.n_kinds, sizeof(mtp_kept))
        own.n_slots = len(program.slots())
        own.slots = <mtp_slot *> self.room(own.n_slots, sizeof(mtp_slot))
        for i, (slot, width) in enumerate(program.slots().items()):
            names = stage.feeds.get(slot)
            own.slots[i].width = width
            own.slots[i].kind = -1 if names is None else self.kinds[tuple(names)]
        if own.form != MTP_GIVEN:
            own.n_fills = own.rows.n = own.rows.n_outputs = own.n_told
            own.rows.is_tree = own.form == MTP_TREE
        return 0

    cdef int64_t output_of(self, int64_t s, int64_t output) except -1:
        """Return an output of a stage; that its pass has it is checked when that is there."""
        cdef mtp_stage *own = &self.loop.stages[s]
        cdef int64_t graph = own.given - self.given
        cdef int64_t most = MOST if own.form == MTP_GIVEN else own.n_told
        if not 0 <= output < most:
            raise BatchError("no such output", where=f"stage {s}", wanted=f"0..{most - 1}",
                             got=output)
        if own.form == MTP_GIVEN:
            self.least[graph] = max(self.least[graph], output + 1)
        return output

    cdef int take_picks(self, int64_t s) except -1:
        """Note which outputs of a stage choose which drafts."""
        cdef mtp_stage *own = &self.loop.stages[s]
        cdef int64_t i, output, draft, rank
        stage = self.stages[s]
        own.n_picks = len(stage.picks)
        own.picks = <mtp_pick *> self.room(own.n_picks, sizeof(mtp_pick))
        if own.n_picks and "logits" not in self.programs[stage.graph].outputs:
            raise BatchError("a graph without logits cannot draft", where=f"stage {s}")
        for i, (output, draft, rank) in enumerate(stage.picks):
            if not 0 <= draft < self.loop.n_drafts:
                raise BatchError("no such draft", where=f"stage {s}", got=draft)
            if not MTP_CHOICE <= rank < MOST or (rank != MTP_CHOICE and own.repeats):
                raise BatchError("a rank from 0 on, of drafts not chosen anew", where=f"stage {s}",
                                 got=rank)
            own.picks[i] = mtp_pick(self.output_of(s, output), draft, rank)
            self.n_ranked = max(self.n_ranked, rank + 1)
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

    cdef int take_fills(self, int64_t s) except -1:
        """Note what rows of a stage get; check that it is there, and of their width."""
        cdef mtp_stage *own = &self.loop.stages[s]
        cdef int64_t i, output, draft, of, source, ahead, graph = own.given - self.given
        cdef bint is_there
        stage, where, feeders = self.stages[s], f"stage {s}", set()
        slots = self.programs[stage.graph].slots()
        if lost := stage.feeds.keys() - slots.keys():
            raise BatchError("slots that the graph does not have", where=where, got=sorted(lost))
        for i, (output, draft, of, source, ahead) in enumerate(stage.fills):
            if not (0 <= output < MOST and -MOST < ahead < MOST):
                raise BatchError("a row of no output", where=f"{where}, fill {i}",
                                 got=(output, ahead))
            self.least[graph] = max(self.least[graph], output + 1)
            if draft != MTP_KNOWN and not (0 <= draft < self.loop.n_drafts
                                           and self.loop.drafts[draft].token >= 0):
                raise BatchError("a draft before it is chosen", where=f"{where}, fill {i}",
                                 got=draft)
            if draft != MTP_KNOWN and not self.loop.drafts[draft].is_open:
                raise BatchError("a draft after one that does not go on",
                                 where=f"{where}, fill {i}", got=draft)
            if not stage.feeds:
                of = MTP_KNOWN
            is_there = 0 <= of < s
            if of == MTP_OF_DRAFT:  # which changes with each time that a stage repeats
                is_there = draft != MTP_KNOWN and own.repeats == 0
                of, source = self.loop.drafts[draft].stage if is_there else of, MTP_OF_DRAFT
            elif is_there:
                source = self.output_of(of, source)
            if of != MTP_KNOWN:
                if not is_there:
                    raise BatchError("a row before it is made", where=f"{where}, fill {i}", got=of)
                feeders.add(of)
            own.told[i] = own.fills[i] = mtp_fill(output, ahead, draft, of, source, i)
        for of in feeders:
            for slot, names in stage.feeds.items():
                self.keep(of, tuple(names), slots[slot], f"{where}: feeds[{slot!r}]")
        return 0

    cdef int keep(self, int64_t s, tuple names, int64_t width, where) except -1:
        """Let a stage keep outputs, side by side, that are as wide as a slot."""
        cdef mtp_stage *stage = &self.loop.stages[s]
        cdef mtp_kept *kept = &stage.kept[<int64_t> self.kinds[names]]
        cdef int64_t i, n = 0
        program = self.programs[self.stages[s].graph]
        shapes = [program.shape(name) for name in names if name in program.outputs]
        for i in range(len(shapes)):
            n += shapes[i][1]
        if len(shapes) < max(len(names), 1) or n != width:
            raise BatchError("a slot is fed by outputs of its width", where=where,
                             wanted=", ".join(program.outputs), got=names)
        if kept.parts == NULL:
            kept.width, kept.n_parts = width, len(shapes)
            kept.parts = <mtp_part *> self.room(kept.n_parts, sizeof(mtp_part))
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

    # Passes and texts

    cdef object take(self, schedule, bint runs):
        """Take the passes of a schedule: with them it is known which rows stages have.

        Returns what ``Drafts`` has if it ``runs``.
        """
        cdef mtp_schedule *loop = &self.loop
        cdef int64_t i, n = 0, n_axes = 1
        try:
            del self.memory[self.n_kept:]
            self.n_left = 0
            if len(schedule.texts) < self.n_texts:
                raise BatchError("a draft of no text", wanted=f"{self.n_texts} texts",
                                 got=len(schedule.texts))
            passes = tuple(schedule.passes)
            for i, one in enumerate(passes):
                self.take_pass(i, one.batch)
            memcpy(loop.drafts, self.drafts, loop.n_drafts * sizeof(mtp_draft_token))
            loop.n_found = 0
            for i in range(loop.n_stages):
                self.take_rows(i, passes[self.stages[i].graph].batch.slots)
                n = max(n, loop.stages[i].rows.n)
                n_axes = max(n_axes, loop.stages[i].rows.n_axes)
            self.make_room(&loop.rows, n, n_axes)
            loop.is_dead, loop.row_at = self.integers(n), self.integers(n)
            return self.run(schedule, passes) if runs else None
        finally:
            self.is_taken = False

    cdef int take_pass(self, int64_t number, batch) except -1:
        """Copy a batch, and note which row each of its rows comes after."""
        cdef mtp_rows *own = &self.given[number]
        cdef int64_t n = len(batch.tokens), m = len(batch.outputs), i, before
        where = f"pass {number}"
        if m < self.least[number]:
            raise BatchError("no such output", where=where, wanted=f"below {m}",
                             got=self.least[number] - 1)
        if not m <= n <= MOST:
            raise BatchError("rows do not fit each other", where=where, wanted=f"{n} rows", got=m)
        own.n, own.n_outputs, own.n_axes = n, m, batch.positions.shape[1]
        own.is_tree, own.has_spans = batch.parent is not None, batch.until is not None
        own.tokens, own.seq = self.copied(batch.tokens, n, 1), self.copied(batch.seq, n, 1)
        own.place = self.copied(batch.place, n, 1)
        own.positions = self.copied(batch.positions, n, own.n_axes)
        own.outputs, own.before = self.copied(batch.outputs, m, 1), self.integers(n)
        own.parent = self.copied(batch.parent if own.is_tree else batch.seq, n, 1)
        own.until = self.copied(batch.until, n, 1) if own.has_spans else NULL
        for i in range(n):
            before = own.parent[i] if own.is_tree else mtp_row_before(own, i)
            if not -1 <= before < i:
                raise BatchError("a parent is an earlier row of the sequence",
                                 where=f"{where}, row {i}", got=before)
            own.before[i] = own.parent[i] = before
        for i in range(m):
            if not 0 <= own.outputs[i] < n:
                raise BatchError("output is not a row", where=f"{where}, output {i}",
                                 got=own.outputs[i])
        return 0

    cdef int32_t *copied(self, array, int64_t n, int64_t width) except NULL:
        """Return a copy of a column of a batch, ``width`` numbers of each row."""
        cdef int32_t *own = self.integers(n * width)
        cdef int32s values = int32s_of(array, array.ndim)
        if values.n != n or values.width != width:
            raise BatchError("rows do not fit each other", wanted=(n, width),
                             got=(values.n, values.width))
        memcpy(own, values.data, n * width * sizeof(int32_t))
        return own

    cdef int make_room(self, mtp_rows *rows, int64_t n, int64_t n_axes) except -1:
        """Let there be room for n rows."""
        rows.tokens, rows.seq = self.integers(n), self.integers(n)
        rows.place, rows.positions = self.integers(n), self.integers(n * n_axes)
        rows.outputs, rows.until = self.integers(n), self.integers(n)
        rows.parent, rows.before = self.integers(n), self.integers(n)
        rows.n_axes = n_axes
        return 0

    cdef int take_rows(self, int64_t s, given) except -1:
        """Place the rows of a stage; check that all its slots are fed, or ``given`` with a pass."""
        cdef mtp_stage *own = &self.loop.stages[s]
        cdef int64_t i, at, n_fed = 0
        if own.form != MTP_GIVEN:
            self.make_room(&own.rows, own.n_told, own.given.n_axes)
        at = mtp_stage_place(own)
        if at >= 0:
            raise BatchError("fills by row", where=f"stage {s}", got=self.stages[s].fills[at],
                             wanted="rows of the pass one after the other")
        for i in range(own.n_fills):
            n_fed += own.fills[i].stage != MTP_KNOWN
        for i, slot in enumerate(self.programs[self.stages[s].graph].slots()):
            if slot not in given and (n_fed < own.rows.n or own.slots[i].kind < 0):
                raise BatchError("a slot that nothing feeds", where=f"stage {s}", got=slot,
                                 wanted="an output for it")
        if own.rows.is_tree:
            self.check_tree(s)
        own.has_run, own.at = False, self.integers(own.rows.n_outputs)
        for i in range(own.rows.n_outputs):
            own.at[i] = -1
        for i in range(self.loop.n_kinds):
            own.kept[i].is_finite = <int8_t *> self.room(own.rows.n_outputs, 1)
        return 0

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
        cdef const int32_t *seq = self.loop.stages[s].rows.seq
        if before >= row or (before >= 0 and seq[before] != seq[row]):
            raise BatchError("a row of a tree comes after a row of its sequence before it",
                             where=f"stage {s}, row {row}", got=before)
        return 0

    # The loop

    cdef object run(self, schedule, tuple passes):
        """Run it; return what ``Drafts`` has."""
        cdef mtp_schedule *loop = &self.loop
        cdef Executor one, first
        cdef Sampler sampler
        cdef int64_t begin, i
        if not self.stages:
            raise BackendError("a schedule without stages")
        bindings = self.bindings_of(passes)
        executors = [bound.executor for bound in bindings.values()]
        first = bindings[passes[self.stages[0].graph].plan].executor
        running, taken = [], []
        try:
            for one in executors:
                if one.is_running:
                    raise BackendError("a plan runs one batch at a time")
                running.append(one)
                one.is_running = True
                one.settle()
            loop.n_logits = loop.n_tokens = 0
            for i in range(loop.n_stages):
                one_pass = passes[self.stages[i].graph]
                self.bind(i, one_pass, bindings[one_pass.plan], first)
            self.take_texts(schedule, first)
            for text in schedule.texts:
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

    cdef dict bindings_of(self, tuple passes):
        """Return what each plan is bound to, with room for its largest stage."""
        cdef mtp_stage *own
        cdef int64_t i
        sizes = {}
        for i in range(self.loop.n_stages):
            own, one = &self.loop.stages[i], passes[self.stages[i].graph]
            memory, n, m, has_fills = sizes.get(one.plan, (one.memory, 0, 0, False))
            sizes[one.plan] = (memory, max(n, own.rows.n), max(m, own.rows.n_outputs),
                               has_fills or own.n_told > 0)
        return {plan: plan.bind(*of) for plan, of in sizes.items()}

    cdef int bind(self, int64_t s, one_pass, bound, Executor first) except -1:
        """Check the rows of a stage, and note the arrays that its plan reads and writes."""
        cdef mtp_stage *own = &self.loop.stages[s]
        cdef Executor executor = bound.executor
        cdef int64_t i, n_logits = bound.n_logits, logits = bound.logits
        cdef bint has_embeddings
        batch, where = one_pass.batch, f"stage {s}"
        if executor.plan.n_threads != first.plan.n_threads:
            raise BackendError("stages for other threads", where=where)
        mtp_run_take(&executor.run_state, &own.rows, own.rows.n, own.rows.n_outputs)
        has_embeddings = own.form == MTP_GIVEN and batch.embeddings is not None
        executor.check_rows(has_embeddings, bound.pages, bound.states)
        rows = bound.rows if own.n_told else batch.slots
        external = [(buffer, rows[slot]) for slot, buffer in bound.slots.items() if slot in rows]
        external += [
            (bound.slots[name], numbers_of(batch, name, where))
            for name in NUMBERS if name in bound.slots
        ]
        if has_embeddings:
            external.append((bound.slots["embeddings"], batch.embeddings))
        executor.take_arrays(bound.outputs + external, has_embeddings, -1)
        own.plan, own.run, own.sampling = &executor.plan, &executor.run_state, executor.sampling
        own.run.interrupt = &first.interrupt
        if own.n_picks:
            if (n_logits < 1 or own_values(executor, logits) < n_logits * own.rows.n_outputs
                    or mtp_plan_n_logits(&executor.plan, logits) not in (0, n_logits)):
                raise BackendError("a buffer without room for the logits", where=where,
                                   got=n_logits)
            if self.loop.n_logits not in (0, n_logits):
                raise BackendError("stages with other numbers of logits", where=where,
                                   wanted=self.loop.n_logits, got=n_logits)
            self.loop.n_logits, own.sampling.logits = n_logits, logits
        self.bind_kept(own, executor, bound.made, where)
        self.bind_slots(own, executor, bound.slots, batch.slots, where)
        for i in range(own.n_told):
            if own.told[i].draft != MTP_KNOWN and executor.n_vocab and (
                    not 0 < self.loop.n_tokens <= executor.n_vocab):
                self.loop.n_tokens = executor.n_vocab
        return 0

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

    cdef int bind_slots(self, mtp_stage *own, Executor executor, dict buffers, given,
                        where) except -1:
        """Note the slots whose rows the loop writes, or that the batch has."""
        cdef mtp_slot *slot
        cdef int64_t i
        cdef floats values
        for i, name in enumerate(self.programs[<int64_t> (own.given - self.given)].slots()):
            slot = &own.slots[i]
            slot.buffer, slot.given, slot.rows = buffers[name], NULL, NULL
            if name in given:
                values = floats_of(given[name], False)
                if values.n < slot.width * own.given.n:
                    raise BatchError("array does not fit the rows", where=f"{where}, slot {name}",
                                     wanted=f"{slot.width * own.given.n} values", got=values.n)
                slot.given = values.data
            if own.n_told == 0:
                continue
            if (own_values(executor, slot.buffer) < slot.width * own.rows.n
                    or executor.reaches[slot.buffer].is_written
                    or executor.reaches[slot.buffer].row_stride[MTP_TOKENS] > slot.width
                    or executor.reaches[slot.buffer].end[MTP_TOKENS] > slot.width
                    or executor.reaches[slot.buffer].end[MTP_OUTPUTS]):
                raise BackendError("a slot with rows of another width than it is fed", where=where,
                                   got=name)
            slot.rows = <float *> own.run.buffers[slot.buffer]
        return 0

    cdef int take_texts(self, schedule, Executor first) except -1:
        """Note what chooses drafts, and after which tokens; check that it can.

        Texts may be long: they are copied to memory that is kept from round to round. Rows that
        stages keep are written there, too.
        """
        cdef mtp_schedule *loop = &self.loop
        cdef const int32_t[::1] ids = schedule.token_ids
        cdef int32s history
        cdef mtp_text *own
        cdef Sampler sampler
        cdef int64_t i, last, n, n_drafts = loop.n_drafts
        cdef int32_t *free
        texts = tuple(schedule.texts)
        n_tokens = sum([len(text.history) + n_drafts for text in texts])
        if n_tokens > MOST_TOKENS:
            raise CapacityError("no memory for a draft", wanted=f"{n_tokens} tokens")
        n = n_tokens
        free = <int32_t *> first.reserve((max(n, 1) + self.place_kept(NULL)) * sizeof(int32_t))
        self.place_kept(<float *> free + max(n, 1))
        loop.n_texts = len(texts)
        loop.texts = <mtp_text *> self.room(loop.n_texts, sizeof(mtp_text))
        for i, text in enumerate(texts):
            own, sampler, history = &loop.texts[i], text.sampler, int32s_of(text.history, 1)
            own.n_history, own.n_prompt = history.n, text.n_prompt
            own.index, own.p_min = text.index, text.p_min
            if history.n + n_drafts > n:
                raise BatchError("a text that changed", got=history.n)
            own.history, free, n = free, free + history.n + n_drafts, n - history.n - n_drafts
            memcpy(own.history, history.data, history.n * sizeof(int32_t))
            own.settings, own.scratch = &sampler.settings, sampler.scratch.pointer
            if loop.n_logits:
                last = own.index if own.index < 0 else own.index + n_drafts
                sampler._check(loop.n_logits, own.n_history, own.n_prompt, last, ids, None)
        for i in range(loop.n_stages):
            has_ids = ids is not None and ids.shape[0] > 0
            loop.stages[i].sampling.token_ids = &ids[0] if has_ids else NULL
        n = min(max(self.n_ranked, 1), max(loop.n_logits, 1))
        loop.ids, loop.probabilities = self.integers(n), <float *> self.integers(n)
        loop.shares = <double *> self.room(n, sizeof(double))
        return 0

    cdef int64_t place_kept(self, float *to) noexcept:
        """Let stages keep rows from here on; returns how many values. NULL: only count them."""
        cdef mtp_stage *own
        cdef int64_t i, kind, n = 0
        for i in range(self.loop.n_stages):
            own = &self.loop.stages[i]
            for kind in range(self.loop.n_kinds):
                if own.kept[kind].parts != NULL:
                    own.kept[kind].rows = NULL if to == NULL else to + n
                    n += own.rows.n_outputs * own.kept[kind].width
        return n


cdef object numbers_of(batch, str name, where):
    """Return what a batch has of ``NUMBERS``, as values of 4 bytes."""
    given, n = getattr(batch, name), len(batch.tokens)
    if given is None or given.ndim != 2 or len(given) != n or given.dtype.itemsize != 4:
        raise BatchError(f"{name} do not fit", where=where, wanted=f"{n} rows of 4-byte numbers",
                         got=None if given is None else (given.dtype.name, given.shape))
    return given.view("float32")


cdef int64_t own_values(Executor executor, int64_t buffer):
    """Return how many values the array of a buffer outside the arena has; 0 where there is none."""
    if not 0 <= buffer < executor.plan.n_buffers or not executor.reaches[buffer].is_outside:
        return 0
    return max(executor.reaches[buffer].given, 0)
