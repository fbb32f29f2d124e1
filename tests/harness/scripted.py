"""Proposers that follow a script, texts to compare with, and a tokenizer of letters."""

from contextlib import suppress

import numpy as np
from hypothesis import strategies as st

from harness.hashed import N_VOCAB, START, HashBackend, HashModel, Planted, advance, logits_of
from mtpcore.cross import link
from mtpcore.declarations.draft_tree import DraftTree
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.context import Context
from mtpcore.sampling import Sampler, Sampling, Scratch, spell_breakers


def settings():
    """Every setting of the sampler, at temperatures 0, 0.7 and 1.5."""
    return st.builds(
        Sampling,
        temperature=st.sampled_from([0.0, 0.7, 1.5]),
        top_k=st.sampled_from([0, 1, 5]),
        top_p=st.sampled_from([1.0, 0.6]),
        min_p=st.sampled_from([0.0, 0.2]),
        repetition_penalty=st.sampled_from([1.0, 1.4]),
        frequency_penalty=st.sampled_from([0.0, 0.3, -0.2]),
        presence_penalty=st.sampled_from([0.0, 0.5]),
        penalty_last_n=st.sampled_from([-1, 4]),
        dry_multiplier=st.sampled_from([0.0, 0.0, 3.0]),
        dry_allowed_length=st.sampled_from([0, 1, 2]),
        dry_sequence_breakers=st.just((4,)),
        top_n_sigma=st.sampled_from([0.0, 0.0, 1.0]),
        typical_p=st.sampled_from([1.0, 1.0, 0.6]),
        xtc_probability=st.sampled_from([0.0, 0.0, 0.5]),
        xtc_threshold=st.just(0.05),
        dynatemp_range=st.sampled_from([0.0, 0.0, 0.5]),
        logit_bias=st.sampled_from([None, {2: 3.0, 5: -float("inf")}]),
        seed=st.integers(0, 2**64 - 1),
        stream=st.sampled_from([0, 1, 2**40]),
    )


def sampler_of(sampling):
    """The sampler of a hashed model, which has no tokenizer."""
    return Sampler(sampling, Scratch(N_VOCAB), spell_breakers(sampling, None))


def plain(prompt, sampling, n):
    """The hashed model's text by definition: one row after the other, no context at work."""
    state, tokens = START, []
    for token in prompt:
        state = advance(state, token)
    sampler = sampler_of(sampling)
    for _ in range(n):
        history = np.asarray([*prompt, *tokens], np.int32)
        tokens.append(sampler.choose(logits_of(state), history, len(prompt), len(history)))
        state = advance(state, tokens[-1])
    return tokens


def right(truth, k):
    return truth[:k]


def wrong(truth, k):
    return [(t + 1) % N_VOCAB for t in truth[:k]]


def right_then_wrong(m):
    return lambda truth, k: [*truth[:m], *wrong(truth[m:], k)][:k]


def right_then(*ids):
    """One right draft and then these."""
    return lambda truth, k: [*truth[:1], *ids]


def empty(truth, k):
    return []


def too_long(truth, k):
    return [*truth[:k], *range(N_VOCAB)]


def endless(truth, k):
    while True:
        yield 1


def as_array(truth, k):
    return np.asarray(truth[:k], np.int64)


SCRIPTS = {
    "right": right,
    "wrong": wrong,
    "right for one": right_then_wrong(1),
    "right for three": right_then_wrong(3),
    "minus one": right_then(-1),
    "beyond the vocabulary": right_then(N_VOCAB),
    "beyond 64 bits": right_then(2**70),
    "a float": right_then(3.0),
    "a bool": right_then(True),
    "a text": right_then("3"),
    "nothing at all": right_then(None),
    "NumPy": as_array,
    "empty": empty,
    "too long": too_long,
    "endless": endless,
}


def fan(truth, k, offsets, right_on):
    """A tree of one child for each offset, level by level below the child number ``right_on``."""
    tokens, parent, above = [], [], -1
    for token in truth[:k]:
        tokens += [(token + offset) % N_VOCAB for offset in offsets]
        parent += [above] * len(offsets)
        above = len(tokens) - len(offsets) + right_on
    return DraftTree(tokens, parent)


def bad_branches(truth, k):
    """Branches of invalid ids with the truth below them, beside the truth itself."""
    chain, n = list(truth[:k]), min(k, len(truth))
    begin = 2 * n + 2  # of the truth alone
    tokens = [-1, *[-2, *chain[1:]][:n], N_VOCAB, *chain, *chain]  # -2 is not reached
    parent = [-1, *range(n), -1, *range(n + 1, 2 * n + 1), *[-1, *range(begin, begin + n)][:n]]
    return DraftTree(tokens, parent)


TREES = {
    "tree, right": lambda truth, k: fan(truth, k, (0, 1, 2), 0),
    "tree, right on the second branch": lambda truth, k: fan(truth, k, (1, 0, 2), 1),
    "tree, right on the last branch": lambda truth, k: fan(truth, min(k, 3), (3, 1, 2, 0), 3),
    "tree, wrong": lambda truth, k: fan(truth, k, (1, 2), 0),
    "tree, right for one": lambda truth, k: fan([*truth[:1], *wrong(truth[1:], k)], k, (0, 1), 0),
    "tree, invalid ids": bad_branches,
    "tree, too deep": lambda truth, k: fan(truth, k + 3, (0, 1), 0),
    "tree, too many": lambda truth, k: (
        DraftTree(
            [*truth[:1], *((truth[0] + i) % N_VOCAB for i in range(1, N_VOCAB)), *[1] * 300],
            [*[-1] * N_VOCAB, *range(N_VOCAB - 1, N_VOCAB + 299)],
        )
        if truth
        else DraftTree([], [])
    ),
    "tree, a chain": lambda truth, k: fan(truth, k, (0,), 0),
    "tree, empty": lambda truth, k: DraftTree([], []),
}
"""Scripts that answer with trees; each path of the first few is cut where it leaves the truth."""


@st.composite
def trees_around(draw, truth, n_vocab=N_VOCAB, most=9):
    """A tree through which the truth goes for a while, with other branches everywhere."""
    tokens, parent, seen, right = [], [], set(), {-1: 0}
    for _ in range(draw(st.integers(0, most))):
        above = draw(st.integers(-1, len(tokens) - 1))
        at = right.get(above)
        true = at is not None and at < len(truth) and draw(st.integers(0, 2)) > 0
        token = truth[at] if true else draw(st.integers(0, n_vocab - 1))
        if (above, token) in seen:
            continue
        seen.add((above, token))
        if at is not None and at < len(truth) and token == truth[at]:
            right[len(tokens)] = at + 1
        tokens.append(token)
        parent.append(above)
    return DraftTree(tokens, parent)


INVALID = [name for name in SCRIPTS if name.startswith(("minus", "beyond", "a ", "nothing"))]


class Scripted:
    """Knows the texts that will be, and drafts from them as its script says.

    ``raises`` is after how many calls it raises once.
    """

    def __init__(self, script, texts=(), raises=None):
        self.script, self.texts, self.raises = script, [list(t) for t in texts], raises
        self.calls, self.asked = 0, []

    def propose(self, seq, tokens, k):
        self.calls += 1
        self.asked.append((seq, tokens.copy(), k))
        if self.raises is not None and self.calls > self.raises:
            self.raises = None
            raise Planted
        history = tokens.tolist()
        tokens[:] = -1  # a copy: what it does to it is its own affair
        for text in self.texts:
            if text[: len(history)] == history:
                return self.script(text[len(history) :], k)
        return self.script([], k)


def cross_of(*drafters, skill=12, nan=0, n_ctx=90, n_seq_max=4, n_batch=16, model=None, tree=None):
    """A Cross of the hashed model with these drafters ("head" or Proposers), and its backend."""
    backend = HashBackend(skill, nan)
    llm = Context(
        model or HashModel(), n_ctx, n_seq_max=n_seq_max, n_batch=n_batch, backend=backend
    )
    wanted = ["hashed" if one == "head" else one for one in drafters]
    return link(llm, wanted, tree=tree), backend


def assert_fresh(cross, seq, tokens, **settings):
    """I1, I2 and I4: every role is as if only these tokens had been seen."""
    fresh, _ = cross_of(*[n for n in ("head",) if "draft" in cross.contexts], **settings)
    fresh.llm.process(Batch.of(tokens, seq=seq))
    assert cross.tokens(seq) == list(tokens)
    assert cross.llm.length(seq) == len(tokens)
    assert cross.digest(seq) == fresh.digest(seq)
    assert all(c.length(seq) == len(tokens) for c in cross.contexts.values())


def run(generator, patience=1000):
    """Step until all is done; step again where a script or a backend raised."""
    while generator.active:
        patience -= 1
        assert patience > 0, "requests do not finish"
        with suppress(Planted):
            generator.step()


class Letters:
    """Token i is the letter of that number; some end a text, and control tokens are hidden."""

    def __init__(self, *end_tokens, control=(), special=True):
        self.end_tokens, self.suppressed = frozenset(end_tokens), ()
        self.control, self.special = frozenset(control), special
        self.special_texts = tuple(f"<{chr(ord('A') + token)}>" for token in sorted(control))

    def stream(self, special=False, start=False):
        return Letters(*self.end_tokens, control=self.control, special=special)

    def push(self, token):
        if token in self.control:
            return f"<{chr(ord('A') + token)}>" if self.special else ""
        return chr(ord("a") + token)

    def flush(self):
        return ""

    n_vocab = 26

    def token_bytes(self, token):
        return self.push(token).encode()

    def shown_bytes(self, token, special=False):
        return Letters(*self.end_tokens, control=self.control, special=special).token_bytes(token)

    def text(self, tokens):
        return "".join(map(self.push, tokens))
