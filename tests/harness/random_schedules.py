"""Random schedules: chains, heads, blocks, post-heads and trees of any mixture."""

import msgspec
import numpy as np
from hypothesis import strategies as st
from programs import N_LOGITS, N_VOCAB, head

from harness.head_runs import GREEDY, HIDDEN, HISTORY, IDS, SAMPLINGS
from mtpcore.backends.base import CheckedBatch
from mtpcore.backends.schedule import (
    BEST,
    KNOWN,
    OF_DRAFT,
    PENDING,
    Best,
    DraftToken,
    Fill,
    Pass,
    Pick,
    Round,
    Schedule,
    Stage,
    Text,
)
from mtpcore.sampling import Sampler, Scratch

HEADS = [head(seed=30), head(factor=None, seed=31), head(factor=None, seed=32)]
FEEDS = {"hidden": ("hidden",)}
SETTINGS = [GREEDY, *SAMPLINGS]

# A stage as it is drawn: the plan, and of each text its rows. A row is what is known of its token
# and its slots: None, or the number of an earlier draft, and of an earlier stage. In a tree it says
# what it comes after besides. New rows come after the pass of an earlier stage: each is so many
# rows ahead of one of its rows. Others may be told by the last row of their text.


class DrawnStage(msgspec.Struct, frozen=True):
    plan: int
    rows: list[tuple[int, int | None, int | None, int]]  # text, draft, stage, output
    picks: list[tuple[int, ...]]
    repeats: int
    runs_whole: bool
    ends_at_nan: bool
    parent: list[int] | None = None
    form: str = "given"
    after: int = 0
    ahead: list[tuple[int, int]] = []  # row of the stage before, how far
    is_relative: bool = False


class Drawn(msgspec.Struct, frozen=True):
    stages: list[DrawnStage]
    drafts: list[tuple[int, int]]
    texts: list[tuple[int, float]]
    is_broken: bool
    has_ids: bool = False
    bests: list[tuple[list[int], list[int], bool]] = []
    verified: tuple[list[int], int] | None = None  # rows that texts hold, and by which sampling


class Drawing:
    """What is drawn so far: stages, drafts and bests.

    What is to be verified is such that a device can run most of it, and that no draft is missing.
    """

    def __init__(self, draw):
        self.draw, self.n_texts = draw, draw(st.integers(1, 3))
        self.stages, self.drafts, self.bests = [], [], []
        self.newest = dict.fromkeys(range(self.n_texts), PENDING)
        self.ranked, self.depths, self.anew = set(), {PENDING: -1}, set()
        self.verifies, self.branches = draw(st.booleans()), draw(st.integers(0, 3)) > 0

    def own(self, text):
        return [n for n, (of, _) in enumerate(self.drafts) if of == text]

    def add_draft(self, text, parent, depth=None):
        self.drafts.append((text, parent))
        n = len(self.drafts) - 1
        self.depths[n] = self.depths[parent] + 1 if depth is None else depth
        return n

    def row(self, number, text, own, rows, *, again, at, is_tree):
        """Draw what a row gets: the token of a draft, and rows that an earlier stage made.

        In a tree most rows get a draft, after one that another row gets where there is any.
        """
        draft, stage, output = None, None, 0
        used = {of for _, of, *_ in rows} - {None}
        if again:
            draft = own[at - 1] if at else None
        elif own and (self.draw(st.booleans()) or (is_tree and self.draw(st.booleans()))):
            after = [n for n in own if used & (self.before(n) - {n})]  # others' rows come before
            if is_tree and not used:
                after = [n for n in own if any(n in self.before(m) - {m} for m in own)]
            takes = bool(after) and (is_tree or self.draw(st.booleans()))
            draft = self.draw(st.sampled_from(after if takes else own))
            if draft in used or any(draft in self.before(of) for of in used):
                draft = None  # a row of a tree comes after rows before it
        if number and (self.verifies or self.draw(st.booleans())):
            if draft is not None and not again and self.draw(st.booleans()):
                stage = OF_DRAFT
            elif self.stages[0].rows:
                stage, output = 0, self.draw(st.integers(0, len(self.stages[0].rows) - 1))
        return text, draft, stage, output

    def before(self, draft):
        """Return the drafts that may come before one."""
        of = {n: candidates for candidates, its, _ in self.bests for n in its}
        return {self.drafts[n][1] for n in of.get(draft, [draft])} | {draft}

    def rank(self, text, output, picks):
        """Draw drafts that an output ranks, after one or two others, and perhaps their best."""
        for _ in range(1 if self.verifies else self.draw(st.integers(1, 2))):
            own = [n for n in self.own(text) if not self.verifies or n < self.n_before]
            parent = self.draw(st.sampled_from([PENDING, *own]))
            ranks = self.draw(st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True))
            if self.verifies:  # all outputs of a stage rank as many tokens
                ranks = [*(rank for rank in ranks if rank < 3), 3]
            its = []
            for rank in ranks:
                its.append(self.add_draft(text, parent))
                self.ranked.add(its[-1])
                picks.append((output, its[-1], rank))
            if self.draw(st.booleans()):
                n = self.draw(st.integers(1, 3))
                depth = self.depths[its[0]]
                best = [self.add_draft(text, BEST, depth) for _ in range(n)]
                self.bests.append((its, best, True))

    def add_rows(self, number):
        """Draw a stage of new rows after those of an earlier one."""
        draw, self.n_before = self.draw, len(self.drafts)
        given = [n for n, stage in enumerate(self.stages) if stage.form == "given"]
        after = draw(st.sampled_from(given))
        form = draw(st.sampled_from(["chain", "tree"] if self.branches else ["chain"]))
        rows, ahead, picks = [], [], []
        for text in sorted({text for text, *_ in self.stages[after].rows}):
            own, before = self.own(text), self.stages[after].rows
            begin = draw(st.sampled_from([n for n, (of, *_) in enumerate(before) if of == text]))
            steps = draw(st.lists(st.integers(0, 4), max_size=3, unique=True))
            for step in steps if form == "tree" else sorted(steps):
                _, draft, stage, output = self.row(
                    *(number, text, own, rows), again=False, at=0, is_tree=form == "tree"
                )
                rows.append((text, draft, stage, output))
                ahead.append((begin, step))
                if len(self.drafts) < 12 and draw(st.booleans()):
                    self.choose(text, len(rows) - 1, picks)
        if rows:
            self.stages.append(
                DrawnStage(
                    plan=self.stages[after].plan,
                    rows=rows,
                    picks=picks,
                    repeats=0,
                    runs_whole=draw(st.booleans()),
                    ends_at_nan=not self.verifies and draw(st.booleans()),
                    form=form,
                    after=after,
                    ahead=ahead,
                )
            )

    def choose(self, text, output, picks):
        """Draw what an output chooses."""
        if self.branches and (self.verifies or self.draw(st.booleans())):
            self.rank(text, output, picks)
            return
        n = self.add_draft(text, self.newest[text])
        picks.append((output, n))
        self.newest[text] = n

    def stage(self, number):
        draw, self.n_before = self.draw, len(self.drafts)
        again = number > 0 and bool(self.drafts) and draw(st.booleans()) and draw(st.booleans())
        again = again and not self.ranked
        is_tree = self.branches and not again and draw(st.booleans())
        rows, picks, parent = [], [], []
        for text in draw(st.permutations(range(self.n_texts))):
            own, begin = self.own(text), len(rows)
            n_rows = len(own) + 1 if again else draw(st.integers(0 if number else 1, 3))
            if again and not own:
                continue
            for at in range(n_rows):
                rows.append(self.row(number, text, own, rows, again=again, at=at, is_tree=is_tree))
                parent.append(draw(st.sampled_from([-1, *range(begin, len(rows) - 1)])))
                output = len(rows) - 1
                if again and at < len(own):
                    picks.append((output, own[at]))
                elif not again and len(self.drafts) < 12 and draw(st.booleans()):
                    self.choose(text, output, picks)
        if not rows or (again and not picks):
            return
        self.stages.append(
            DrawnStage(
                plan=draw(st.integers(0, 2)),
                rows=rows,
                picks=picks,
                repeats=draw(st.integers(1, 4)) if again else 0,
                runs_whole=draw(st.booleans()),
                ends_at_nan=not self.verifies and draw(st.booleans()),
                parent=parent if is_tree else None,
                is_relative=draw(st.booleans()),
            )
        )

    def rooted(self, drafts):
        """Return the drafts that come after none but the others, down to the pending token."""
        of, kept = {n: candidates for candidates, its, _ in self.bests for n in its}, set()
        for n in drafts:
            parent = self.drafts[n][1]
            if parent == PENDING or kept.issuperset(of.get(parent, [parent])):
                kept.add(n)
        return sorted(kept)

    def end(self):
        """Draw the best of all ranked drafts of a text, which nothing comes after.

        They are a tree.
        """
        for text in range(self.n_texts):
            candidates = self.rooted(n for n in self.own(text) if n in self.ranked)
            if candidates and self.draw(st.booleans()):
                most = min(4, len(candidates)) if self.verifies else 4  # none is to be missing
                n = self.draw(st.integers(1, most))
                best = [self.add_draft(text, BEST, 0) for _ in range(n)]
                self.bests.append((candidates, best, False))
        order = {
            pick[1]: (s, i) for s, one in enumerate(self.stages) for i, pick in enumerate(one.picks)
        }
        self.bests.sort(key=lambda best: max(order[n] for n in best[0]))


@st.composite
def schedules(draw):
    """Draw chains, heads, blocks, posts and trees of any mixture: each reads what comes before."""
    drawing = Drawing(draw)
    verifies, least = drawing.verifies, st.sampled_from([0.0, 0.0, 0.06, 0.2])
    texts = [
        (draw(st.integers(0, len(SAMPLINGS))), 0.0 if verifies else draw(least))
        for _ in range(drawing.n_texts)
    ]
    for number in range(draw(st.integers(3 if drawing.branches else 1, 4))):
        if drawing.stages and draw(st.booleans()):
            drawing.add_rows(len(drawing.stages))
        else:
            drawing.stage(number if drawing.stages else 0)
    drawing.end()
    verified = None
    if drawing.verifies:
        n_held = st.integers(1, 5)
        held = [draw(n_held) for _ in range(drawing.n_texts)]
        verified = held, draw(st.integers(-1, len(SAMPLINGS)))
    return Drawn(
        drawing.stages,
        drawing.drafts,
        texts,
        not verifies and draw(st.integers(0, 2)) == 0,
        not verifies and draw(st.booleans()),
        drawing.bests,
        verified,
    )


def make(drawn, runners, n_before=0):
    """Return the schedule; places of all rows are reserved.

    Passes have ``n_before`` further rows of each text before those that are drawn.
    """
    scratch, lengths = Scratch(N_LOGITS, N_VOCAB + 3), {}
    stages, passes, given = [], [], {}
    for number, stage in enumerate(drawn.stages):
        if stage.form == "given":
            given[number] = len(passes)
            passes.append(pass_of(drawn, number, runners, lengths, n_before))
            fills = given_fills(stage)
        else:
            batch = passes[given[stage.after]].batch
            place = batch.place[batch.outputs]
            for row, (text, *_) in enumerate(stage.rows):
                begin, ahead = stage.ahead[row]
                at = (stage.plan, text)
                lengths[at] = max(lengths[at], int(place[begin]) + max(ahead, len(stage.rows)) + 1)
            fills = [
                fill_of(one, *ahead) for one, ahead in zip(stage.rows, stage.ahead, strict=True)
            ]
        stages.append(
            Stage(
                graph=given[number if stage.form == "given" else stage.after],
                rows=stage.form,
                fills=fills,
                feeds=FEEDS,
                picks=[Pick(*pick) for pick in stage.picks],
                repeats=stage.repeats,
                runs_whole=stage.runs_whole,
                ends_at_nan=stage.ends_at_nan,
            )
        )
    for (plan, text), n in lengths.items():
        # Rows that are left out have been there before: others may see their places.
        runners[plan].feed(HISTORY[:n], seq=text, place=0, hidden=HIDDEN[:n], outputs=[])
    return Schedule(
        round=Round(
            stages=stages,
            drafts=[DraftToken(*draft) for draft in drawn.drafts],
            bests=[Best(*best) for best in drawn.bests],
        ),
        passes=passes,
        texts=[
            Text(Sampler(SETTINGS[which], scratch), HISTORY[:5], 2, 5, p_min)
            for which, p_min in drawn.texts
        ],
        token_ids=IDS if drawn.has_ids else None,  # some have no embedding
    )


def pass_of(drawn, number, runners, lengths, n_before):
    """Return the pass of a stage; its places come after those that passes have so far."""
    stage = drawn.stages[number]
    runner, seq, outputs = runners[stage.plan], [], []
    for text, *_ in stage.rows:
        seq += [text] * n_before * (text not in seq)
        outputs.append(len(seq))
        seq.append(text)
    n, place = len(seq), []
    for text in seq:
        place.append(lengths.get((stage.plan, text), 0))
        lengths[stage.plan, text] = place[-1] + 1
    hidden = HIDDEN[[7 * number + i for i in range(n)]].copy()
    if drawn.is_broken:
        hidden[(5 * number) % n] = np.nan
    parent = None
    if stage.parent is not None:
        parent = np.full(n, -1, np.int32)
        parent[outputs] = [outputs[row] if row >= 0 else -1 for row in stage.parent]
    batch = CheckedBatch(
        tokens=HISTORY[number : number + n].copy(),
        positions=np.array(place, np.int32)[:, None].copy(),
        seq=np.array(seq, np.int32),
        place=np.array(place, np.int32),
        outputs=np.array(outputs, np.int32),
        parent=parent,
        slots={"hidden": hidden},
    )
    return Pass(plan=runner.plan, memory=runner.memory, batch=batch)


def given_fills(stage):
    """Return the fills of given rows; of those that are relative some are of no row at all."""
    texts, fills = [text for text, *_ in stage.rows], []
    last = {text: row for row, text in enumerate(texts)}
    for row, one in enumerate(stage.rows):
        is_first = row == 0 or texts[row - 1] != texts[row]
        if stage.is_relative and is_first:
            output = last[texts[row]]
            fills.append(Fill(output, KNOWN, KNOWN, 0, row - 1 - output))
            fills.append(Fill(output, KNOWN, KNOWN, 0, -99))
        if one[1] is not None or one[2] is not None:
            output = last[texts[row]] if stage.is_relative else row
            fills.append(fill_of(one, output, row - output))
    return fills


def fill_of(row, output, ahead):
    """Return what a row gets, which is so many rows ahead of an output."""
    _, draft, source, of = row
    return Fill(
        output,
        KNOWN if draft is None else draft,
        KNOWN if source is None else source,
        of,
        ahead,
    )


# A stage without fills runs whole: what it stores is seen later, broken as it may be.
WITHOUT_FILLS = Drawn(
    stages=[
        DrawnStage(0, [(text, None, None, 0) for text in (0, 1, 2)], [(2, 0)], 0, False, False),
        DrawnStage(0, [(2, None, None, 0), (2, 0, None, 0)], [(0, 0)], 1, False, False),
        DrawnStage(0, [(text, None, None, 0) for text in (1, 1, 2)], [(2, 1)], 0, False, False),
        DrawnStage(
            0, [(text, None, None, 0) for text in (2, 2, 0, 0, 0, 1)], [(5, 2)], 0, False, False
        ),
    ],
    drafts=[(2, PENDING), (2, 0), (1, PENDING)],
    texts=[(0, 0.0)] * 3,
    is_broken=True,
)


def ranked(output, first, n=6):
    """Return picks of an output that ranks n drafts: their order tells of small changes, too."""
    return [(output, first + rank, rank) for rank in range(n)]


ROOT = DrawnStage(0, [(0, None, None, 0)], ranked(0, 0, 2), 0, False, False)
# A row before one that chooses is left out, and that one moves up.
MOVED_UP = Drawn(
    stages=[
        ROOT,
        DrawnStage(
            *(0, [(0, 0, OF_DRAFT, 0), (0, 1, OF_DRAFT, 0)], ranked(1, 2)),
            *(0, False, False, [-1] * 2),
        ),
    ],
    drafts=[(0, PENDING)] * 2 + [(0, 1)] * 6,
    texts=[(0, 0.0)],
    is_broken=False,
)
# A row comes after that of the draft before its own, whatever the batch says.
LINKED = Drawn(
    stages=[
        ROOT,
        DrawnStage(1, [(0, 0, OF_DRAFT, 0)], [(0, 2)], 0, False, False),
        DrawnStage(
            *(0, [(0, 0, None, 0), (0, 2, OF_DRAFT, 0)], ranked(1, 3)),
            *(0, False, False, [-1] * 2),
        ),
    ],
    drafts=[(0, PENDING)] * 2 + [(0, 0)] + [(0, 2)] * 6,
    texts=[(0, 0.0)],
    is_broken=False,
)
# Rows of the best drafts, and of the best after these; penalties read what is on the way.
GROWN = Drawn(
    stages=[
        ROOT,
        DrawnStage(
            *(0, [(0, 2, OF_DRAFT, 0), (0, 3, OF_DRAFT, 0)], ranked(0, 4, 2) + ranked(1, 6, 2)),
            *(0, False, False, [-1] * 2),
        ),
        DrawnStage(
            *(0, [(0, n, OF_DRAFT, 0) for n in (2, 3, 8, 9)], ranked(2, 10, 4) + ranked(3, 14, 4)),
            *(0, False, False, [-1] * 4),
        ),
    ],
    drafts=[
        *[(0, PENDING)] * 2,
        *[(0, BEST)] * 2,
        *([(0, 2)] * 2 + [(0, 3)] * 2),
        *[(0, BEST)] * 2,
        *([(0, 8)] * 4 + [(0, 9)] * 4),
        *[(0, BEST)] * 5,
    ],
    texts=[(2, 0.0)],
    is_broken=False,
    bests=[
        ([0, 1], [2, 3], True),
        ([4, 5, 6, 7], [8, 9], True),
        ([0, 1, *range(4, 8), *range(10, 18)], [*range(18, 23)], False),
    ],
)

# The second row of a stage comes after a draft of the first one, which is none; it was made all the
# same, and feeds another stage.
AFTER_ITS_OWN = Drawn(
    stages=[
        DrawnStage(0, [(0, None, None, 0), (1, None, None, 0)], [(1, 0)], 0, False, False),
        DrawnStage(
            *(1, [(1, None, None, 0), (1, 0, None, 0), *[(1, None, None, 0)] * 3]),
            *([(0, 1), (1, 2)], 0, False, True, [-1] * 5),
        ),
        DrawnStage(2, [(1, None, 1, 1)], [(0, 3)], 0, False, False),
    ],
    drafts=[(1, PENDING), (1, 0), (1, 1), (1, PENDING)],
    texts=[(0, 0.0)] * 2,
    is_broken=True,
)
# A row that gets nothing comes after one whose draft is none: what it chooses is none, too, though
# that comes after nothing but the pending token.
AFTER_A_DEAD_ROW = Drawn(
    stages=[
        DrawnStage(0, [(1, None, None, 0), (0, None, None, 0)], [(0, 0)], 0, False, True),
        DrawnStage(
            *(
                1,
                [
                    *[(0, None, None, 0)] * 2,
                    (1, None, None, 0),
                    (1, 0, None, 0),
                    (1, None, None, 0),
                ],
            ),
            *([(4, 1, 0)], 0, False, True),
        ),
    ],
    drafts=[(1, PENDING), (1, PENDING)],
    texts=[(0, 0.0)] * 2,
    is_broken=True,
)
# What was none before is chosen anew from a row that is finite, and stays none.
NONE_ANEW = Drawn(
    stages=[
        DrawnStage(0, [(0, None, None, 0), (1, None, None, 0)], [(0, 0), (1, 1)], 0, False, True),
        DrawnStage(1, [(0, None, None, 0), (1, None, None, 0)], [(0, 0), (1, 1)], 2, True, True),
    ],
    drafts=[(0, PENDING), (1, PENDING)],
    texts=[(0, 0.0)] * 2,
    is_broken=True,
)


def best_of_many():
    """Return the best drafts that can be read, of many: some have no embedding."""
    rows = [(text, None, None, 0) for text in range(3) for _ in range(3)]
    picks, drafts, bests = [], [], []
    for output, (text, *_) in enumerate(rows):
        first = len(drafts)
        picks += ranked(output, first)
        drafts += [(text, PENDING)] * 6 + [(text, BEST)] * 6
        bests.append(([*range(first, first + 6)], [*range(first + 6, first + 12)], True))
    stages = [DrawnStage(0, rows, picks, 0, False, False)]
    fed = [
        (text, best[0], OF_DRAFT, 0) for (text, *_), (_, best, _) in zip(rows, bests, strict=True)
    ]
    stages.append(DrawnStage(2, fed, [], 0, False, False, [-1] * 9))
    return Drawn(stages, drafts, [(0, 0.0)] * 3, False, True, bests)
