"""Draft runs over several heads, each a plan with a memory of its own."""

import numpy as np
from hypothesis import strategies as st
from programs import N_LOGITS, N_VOCAB, WIDTH, head

from harness.draft_runs import DraftPass, DraftRun
from mtpcore.backends.base import CheckedBatch
from mtpcore.sampling import Sampler, Sampling, Scratch
from mtpcore.testing import Runner

RNG = np.random.default_rng(4)
HISTORY = RNG.integers(0, N_VOCAB, 100).astype(np.int32)
HIDDEN = RNG.normal(size=(100, WIDTH)).astype(np.float32)
IDS = RNG.permutation(N_VOCAB + 3)[:N_LOGITS].astype(np.int32)  # some have no embedding
GREEDY = Sampling(temperature=0)
SAMPLINGS = [
    Sampling(temperature=1.3, seed=8, stream=1),
    Sampling(temperature=1.7, seed=6, top_k=5, repetition_penalty=1.3, stream=2),
    GREEDY,
]
N_HEADS = 3
DIRECT = (None,) * N_HEADS  # logits that one product makes: tokens may run for them
FACTORS = [DIRECT, (3.0,) * N_HEADS, (None, 3.0, None)]
HEADS = {
    (factor, i): head(factor=factor, seed=20 + i) for factor in (None, 3.0) for i in range(N_HEADS)
}


def runners(backend, threads=1, factors=DIRECT):
    made = [HEADS[factor, i] for i, factor in enumerate(factors)]
    return [Runner(backend, *one, threads=threads, n_batch=128) for one in made]


def make_run(heads, sequences, *, recycles=True, ids=None):
    """Return the run of [(seq, pending, held, k, p_min, sampling)].

    ``pending`` is the place of the pending token, ``held`` how many entries each head has.
    """
    scratch = Scratch(N_LOGITS, N_VOCAB + 3)
    passes = []
    for number, one in enumerate(heads):
        going = [each for each in sequences if each[3] > number or not number]
        seq, place, tokens, hidden = [], [], [], []
        for slot, pending, held, *_ in going:
            begin, end = held[number], pending + 1 + number
            if begin:
                one.feed(HISTORY[:begin], seq=slot, place=0, hidden=HIDDEN[:begin], outputs=[])
            one.memory.reserve({slot: (begin, end)})
            n_drafts = min(number, end - begin)
            seq += [slot] * (end - begin)
            place += range(begin, end)
            tokens += [HISTORY[begin : end - n_drafts], np.zeros(n_drafts, np.int32)]
            hidden += [HIDDEN[begin : end - n_drafts]]
            hidden += [np.zeros((n_drafts, WIDTH)) if recycles else HIDDEN[50 : 50 + n_drafts]]
        ends = [pending + 1 + number - held[number] for _, pending, held, *_ in going]
        rows = CheckedBatch(
            tokens=np.concatenate(tokens),
            positions=np.array(place, np.int32)[:, None],
            seq=np.array(seq, np.int32),
            place=np.array(place, np.int32),
            outputs=np.cumsum(ends, dtype=np.int32) - np.int32(1),
            slots={"hidden": np.concatenate(hidden).astype(np.float32)},
        )
        passes.append(DraftPass(one.plan, one.memory, rows))
        if max(each[3] for each in sequences) <= number + 1:
            break
    return DraftRun(
        batch=passes[0].batch,
        samplers=[Sampler(sampling, scratch) for *_, sampling in sequences],
        history=[HISTORY[: pending + 1] for _, pending, *_ in sequences],
        n_prompt=[pending // 2 for _, pending, *_ in sequences],
        k=[k for _, _, _, k, _, _ in sequences],
        p_min=[p_min for *_, p_min, _ in sequences],
        recycle={"hidden": "hidden"} if recycles else {},
        token_ids=ids,
        later=passes[1:],
    )


@st.composite
def described(draw, samplings, floors):
    pending = draw(st.integers(0, 40))
    held = [draw(st.integers(max(pending - 12, 0), pending + i)) for i in range(N_HEADS)]
    k, floor = draw(st.integers(0, N_HEADS)), draw(st.sampled_from(floors))
    return pending, held, k, floor, draw(st.sampled_from(samplings))


ways = st.one_of(
    st.tuples(st.sampled_from(FACTORS), st.lists(
        described(SAMPLINGS, [0.0, 0.05, 0.3, 1.0]), min_size=1, max_size=4)),
    st.tuples(st.sampled_from(FACTORS), st.lists(
        described([SAMPLINGS[0], GREEDY], [0.0]), min_size=1, max_size=4)),
)  # fmt: skip


def clear(*made):
    """Forget all rows of runners."""
    for each in made:
        for seq in range(4):
            each.memory.rewind(seq, 0)


def hold(target, seq, length):
    """Let the target have so many rows of a sequence."""
    there = min(target.memory.length(seq), length)
    target.memory.rewind(seq, there)
    if there < length:
        new = slice(there, length)
        target.feed(HISTORY[new], seq=seq, place=there, hidden=HIDDEN[new], outputs=[])
