"""Load saved states that somebody has tampered with, each in a process with little memory.

``python -m harness.fuzz_states BEGIN END`` prints a JSON line for each seed: how it ended ("ran",
"refused", or what went wrong). What loads is used: drafts, verified and accepted, and saved again.
"""

import contextlib
import json
import logging
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from harness import hybrid_family
from harness.confined import WATCHED, confined
from harness.damaged_states import damage
from harness.families import FAMILIES
from mtpcore import Batch, MtpcoreError, Sampling, StateError

SECONDS = 60
SAMPLINGS = (
    Sampling.greedy(),
    Sampling(temperature=0.8, seed=1, top_k=9, repetition_penalty=1.1, logit_bias={3: 1.0}),
)
N_CTX = 96


def linked(subject, **options):
    return subject.link(N_CTX, n_seq_max=2, threads=1, **options)


def go_on(cross, seq, sampling, n=2):
    for _ in range(n):
        drafts = cross.draft({seq: 3}, sampling=sampling)
        for verdict in cross.verify(drafts, sampling).values():
            assert all(0 <= t < cross.llm.model.hparams.n_vocab for t in verdict.tokens)
        cross.accept(seq)


def sound_states(subject):
    """Return states of texts of several lengths, of crosses and of contexts alone."""
    states = []
    for n, sampling in ((1, None), (5, SAMPLINGS[1]), (70, SAMPLINGS[0])):
        cross = linked(subject)
        cross.llm.process(Batch.of(subject.text(n)))
        if sampling is not None:
            go_on(cross, 0, sampling)
        states.append(cross.save(0))
    cross.fork(0, 1, stream=5)
    states.append(cross.save(1))
    alone = subject.context(N_CTX, n_seq_max=2, threads=1)
    alone.process(Batch.of(subject.text(9)))
    return [*states, alone.save(0), alone.save(1)]


def use(data, cross, alone):
    """Load a state where it fits; what is refused is a StateError, and has changed nothing."""
    refusals = []
    for one in (cross, alone):
        before = one.digest(0)
        try:
            sampling = one.load(0, data)
        except StateError as error:
            assert one.digest(0) == before
            refusals.append(error)
            continue
        except MtpcoreError as error:
            raise AssertionError(f"refused by another error: {error!r}") from error
        with contextlib.suppress(MtpcoreError):  # what was forged may lack what a draft needs
            if one is cross:
                go_on(one, 0, sampling or SAMPLINGS[0])
            again = one.save(0)
            one.load(1, again)
            assert one.digest(1) == one.digest(0)
    if len(refusals) == 2:
        kinds = ("the state is of a Context", "the state is of a Cross")
        raise next((e for e in refusals if e.what not in kinds), refusals[0])


def main(begin, end):
    logging.disable()
    np.seterr(all="ignore")
    with TemporaryDirectory() as folder:
        run(folder, int(begin), int(end))


def run(folder, begin, end):
    """Damage states of keys and values, of sliding windows, and of recurrent layers in turn."""
    subjects = [one for one in FAMILIES if one.name in ("demo", "demo:mimo2")]
    subjects.append(hybrid_family.subject(Path(folder)))
    states = [sound_states(subject) for subject in subjects]
    receivers = [(linked(one), one.context(N_CTX, n_seq_max=2, threads=1)) for one in subjects]
    for cross, alone in receivers:
        cross.prepare()
        alone.prepare()
    for sound, receiver in zip(states, receivers, strict=True):
        for data in sound:  # what every child would import is there
            how, _ = confined(partial(use, data, *receiver))
            assert how == "ran", how
    for seed in range(begin, end):
        which = seed % len(subjects)
        data = damage(states[which], states[which - 1], seed)
        how, peak = confined(partial(use, data, *receivers[which]), SECONDS)
        if peak > 1 << 30 and not WATCHED:
            how = f"{peak >> 20} MB; {how}"
        print(json.dumps({"seed": seed, "how": how}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
