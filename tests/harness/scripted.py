"""Proposers that follow a script, texts to compare with, and a tokenizer of letters."""

from contextlib import suppress

import numpy as np
from hypothesis import strategies as st

from harness.hashed import N_VOCAB, START, HashBackend, HashModel, Planted, advance, logits_of
from mtpcore.context import Context
from mtpcore.cross import link
from mtpcore.sampling import Sampler, Sampling, Scratch


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
        logit_bias=st.sampled_from([None, {2: 3.0, 5: -float("inf")}]),
        seed=st.integers(0, 2**64 - 1),
        stream=st.sampled_from([0, 1, 2**40]),
    )


def plain(prompt, sampling, n):
    """The hashed model's text by definition: one row after the other, no context at work."""
    state, tokens = START, []
    for token in prompt:
        state = advance(state, token)
    sampler = Sampler(sampling, Scratch(N_VOCAB))
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


def cross_of(*drafters, skill=12, nan=0, n_ctx=90, n_seq_max=4, n_batch=16, model=None):
    """A Cross of the hashed model with these drafters ("head" or Proposers), and its backend."""
    backend = HashBackend(skill, nan)
    llm = Context(
        model or HashModel(), n_ctx, n_seq_max=n_seq_max, n_batch=n_batch, backend=backend
    )
    wanted = ["hashed" if one == "head" else one for one in drafters]
    return link(llm, wanted), backend


def run(generator, patience=1000):
    """Step until all is done; step again where a script or a backend raised."""
    while generator.active:
        patience -= 1
        assert patience > 0, "requests do not finish"
        with suppress(Planted):
            generator.step()


class Letters:
    """Token i is the letter of that number; some tokens end a text."""

    def __init__(self, *end_tokens):
        self.end_tokens = frozenset(end_tokens)

    def stream(self):
        return self

    def push(self, token):
        return chr(ord("a") + token)

    def flush(self):
        return ""

    def text(self, tokens):
        return "".join(map(self.push, tokens))
