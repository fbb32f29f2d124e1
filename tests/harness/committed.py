"""What is committed of each sequence, kept beside a Cross, and looks at it that settle nothing."""

import hashlib

import numpy as np

from harness.hashed import N_VOCAB, START, advance, logits_of
from mtpcore.declarations.draft_tree import DraftTree
from mtpcore.sampling import Sampler, Scratch


class Known:
    """One sequence as its user knows it: its text, and what plain decoding says comes next.

    ``pending`` is the token that was chosen and not processed; it ``stays`` where tokens before it
    were dropped after that. ``drafted`` is what was drafted after
    it. After a ``verify`` of ``verified``, ``verdict`` waits. ``goes_on`` is False while nothing
    can be chosen: the newest row's logits were not asked for, or went with a rollback.
    """

    def __init__(self, sampling):
        self.sampling, self.tokens, self.n_prompt = sampling, [], 0
        self.drop()

    def drop(self):
        """Nothing was chosen, drafted or verified."""
        self.pending = self.verdict = self.verified = None
        self.drafted, self.goes_on = [], False
        self.stays = None

    def copy(self):
        new = Known(self.sampling)
        vars(new).update(vars(self), tokens=list(self.tokens))
        return new

    def process(self, tokens, goes_on=True):
        text = tokens[0] == self.pending
        self.tokens = [*self.tokens, *tokens]
        self.n_prompt = self.n_prompt if text else len(self.tokens)
        self.drop()
        self.goes_on = goes_on

    def cut(self, n):
        self.tokens, self.n_prompt = self.tokens[:n], min(self.n_prompt, n)
        self.drop()

    def shift(self, keep, drop):
        n = self.n_prompt
        self.tokens = [*self.tokens[:keep], *self.tokens[keep + drop :]]
        self.n_prompt = min(n, keep) + max(n - keep - drop, 0)
        if drop:
            self.drafted, self.stays = [], self.pending

    def accept(self, n):
        verdict = self.verdict
        self.tokens = [*self.tokens, self.pending, *verdict.tokens[:n]]
        self.drop()
        self.pending, self.goes_on = verdict.tokens[n], True

    @property
    def n_undecided(self):
        """How many rows the target holds beyond the text: of a tree the path that was taken."""
        if self.verdict is None:
            return 0
        is_tree = isinstance(self.verified, DraftTree) and not self.verified.is_chain
        return 1 + (self.verdict.accepted if is_tree else len(self.verified))

    def told(self):
        """The tokens whose rows were delivered: of a tree those on the path that was taken."""
        if self.verdict is None:
            return self.tokens
        draft, path = self.verified, self.verdict.tokens[: self.verdict.accepted]
        if not isinstance(draft, DraftTree):
            path = draft
        elif draft.is_chain:
            path = draft.tokens.tolist()
        return [*self.tokens, self.pending, *path]

    def states(self):
        """The target's state after each token that was told."""
        found, state = [], START
        for token in self.told():
            state = advance(state, token)
            found.append(state)
        return found

    def truth(self, n):
        """The next n tokens of plain decoding, the pending one first."""
        text, state = list(self.tokens), START
        for token in text:
            state = advance(state, token)
        if self.stays is not None:
            text.append(self.stays)
            state = advance(state, self.stays)
        while len(text) < len(self.tokens) + n:
            history = np.asarray(text, np.int32)
            sampler = Sampler(self.sampling, Scratch(N_VOCAB))
            text.append(sampler.choose(logits_of(state), history, self.n_prompt, len(history)))
            state = advance(state, text[-1])
        return text[len(self.tokens) :]


def digest_before(context, seq, end):
    """Hash what a context holds of a sequence before place ``end``; a drafter is not settled."""
    memory = context.runner.memory
    if getattr(memory, "recurrent", None):
        return memory.digest(seq)  # of all of it: a state has no rows
    begin, end = memory.first(seq), min(end, memory.length(seq))
    found = hashlib.blake2b(f"{begin}..{end}".encode() if begin < end else b"none")
    memory.hash_rows(found, seq, begin, end)
    return found.digest()


def check_pages(context):
    """No page is lost, once the next act has begun and given up what is not kept."""
    context.runner.sequences.save()
    for group in context.runner.memory.groups if context.runner.memory else ():
        pages = group.pages
        held = pages.tables[pages.tables >= 0]
        assert np.array_equal(np.bincount(held, minlength=len(pages.uses)), pages.uses)
        assert sorted(pages._free) == np.flatnonzero(pages.uses == 0).tolist()
        assert len(pages._free) == pages.n_free


def look(cross, seq):
    """Everything that a Cross shows of a sequence; nothing of it is changed by looking."""
    held = {
        role: (one.length(seq), one.runner.memory and digest_before(one, seq, one.length(seq)))
        for role, one in cross.contexts.items()
    }
    waiting = {
        (role, slot): box.length(seq)
        for role in cross.contexts
        for slot, box in cross.links.inboxes(role).items()
    }
    return cross.tokens(seq), cross.pending(seq), held, waiting
