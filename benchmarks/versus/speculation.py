"""Decoding with drafts against decoding without, both with mtpcore, at a simulated acceptance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from timing import alternate, choose

import mtpcore
from mtpcore.decoding import SimulatedAcceptance
from versus.hold import Hold
from versus.ours import Ours
from versus.results import Found, Ratio
from versus.work import Work

if TYPE_CHECKING:
    from versus.peer_speculation import PeerWriter

__all__ = ["measure_speculation"]

DEPTH, DRAFT, LENGTH = 512, 3, 2.8
ROUNDS = 12
FEW = 32768  # tokens of a draft vocabulary, where the model has more


class Writer:
    """A request that goes on from turn to turn; drafts are of the text that is known."""

    def __init__(
        self,
        model: mtpcore.Model,
        prompt: list[int],
        known: list[int],
        draft: int,
        threads: int,
        vocabulary: mtpcore.DraftVocabulary | None = None,
    ) -> None:
        llm = mtpcore.Context(model, DEPTH + len(known), threads=threads)
        cross = mtpcore.link(llm, "auto" if draft else [], draft_vocabulary=vocabulary)
        cross.prepare()
        simulated = SimulatedAcceptance.of_length(LENGTH, DRAFT)
        simulated.expect([*prompt, *known])
        simulated.install(cross)
        greedy = mtpcore.Sampling.greedy()
        self.generator = mtpcore.Generator(cross, sampling=greedy, draft=draft)
        self.request = self.generator.add(prompt, max_tokens=len(known) - 8, ignore_eos=True)
        while len(self.request.tokens) < 2:  # the drafter has read the prompt, too
            self.generator.step()
        self.is_timed = False

    def write(self, n_rounds: int) -> None:
        """Write on for so many rounds; nobody times the first ones, and stats leave them out."""
        for _ in range(n_rounds):
            self.generator.step()
        assert not self.request.done
        if not self.is_timed:
            self.generator.stats = mtpcore.Stats()
            self.is_timed = True


def measure_speculation(
    name: str, path: Path, threads: int, pairs: int, hold: Hold, *, peer: bool = False
) -> Iterator[Found]:
    """Yield ``speculation``: seconds of a token at the mean length, beside plain ones'.

    Then ``speculation-n``, the same with a draft vocabulary of n tokens, if the model has more.
    Times of rounds do not depend on how many drafts are accepted but by a row or two of the head,
    so the simulated length is taken out: a token's time is a round's over the length. ``peer``:
    what llama.cpp gains with its MTP drafts is measured in the same turns.
    """
    model = mtpcore.load_model(path)
    n_vocab = model.hparams.n_vocab
    engine = Ours(model, DEPTH + 8, threads)
    tokens = np.random.default_rng(5).integers(3, n_vocab, DEPTH + 4).tolist()
    engine.fill(tokens[:DEPTH])

    def verify(n: int) -> None:
        engine.process(tokens[DEPTH : DEPTH + n], every=True)
        engine.rewind(DEPTH)

    for n in (1, DRAFT + 1):  # ways to prefetch are compared, and known to the writers' plans
        verify(n)
        while not engine.context.runner.is_warm:
            verify(n)
    n_plain = round(ROUNDS * LENGTH)
    room = (pairs + 1) * max(n_plain, (DRAFT + 1) * ROUNDS) + 32
    prompt = np.random.default_rng(3).integers(3, n_vocab, DEPTH).tolist()
    writer = mtpcore.Generator(
        mtpcore.Context(model, DEPTH + room, threads=threads), sampling=mtpcore.Sampling.greedy()
    )
    known = list(writer.generate(prompt, max_tokens=room, ignore_eos=True))
    plain = Writer(model, prompt, known, 0, threads)
    drafted = {"speculation": Writer(model, prompt, known, DRAFT, threads)}
    if n_vocab > FEW:
        few = mtpcore.DraftVocabulary(range(FEW), tokenizer="")
        drafted[f"speculation-{FEW}"] = Writer(model, prompt, known, DRAFT, threads, few)
    runs: list[Callable[[], object]] = [
        lambda: plain.write(n_plain),
        lambda: verify(1),
        lambda: verify(DRAFT + 1),
        *(partial(one.write, ROUNDS) for one in drafted.values()),
    ]
    theirs = _peer(path, n_vocab, room, threads, hold) if peer else None
    if theirs is not None:
        runs += [lambda: theirs.decode(n_plain), lambda: theirs.draft(ROUNDS)]
    times = iter(alternate(runs, pairs, hold=hold))
    alone = [seconds / n_plain for seconds in next(times)]
    one, four = next(times).median, next(times).median
    rounds = {cell: next(times) for cell in drafted}
    gain = {}
    if theirs is not None:
        plain_round = [seconds / n_plain * LENGTH * ROUNDS for seconds in next(times)]
        gain["llama.cpp gain"] = Ratio.of(plain_round, next(times)).median
        theirs.close()
    trunk = Work.of(model)
    for cell, seconds in rounds.items():
        stats = drafted[cell].generator.stats
        drafts = stats.draft_seconds / stats.passes
        head = Work.of(model, head=True, n_logits=n_vocab if cell == "speculation" else FEW)
        read = trunk.n_bytes(DRAFT + 1) + DRAFT * head.n_bytes(1)
        more = {
            "length": stats.tokens_per_pass,
            "by_costs": LENGTH * one / (four + drafts),
            "by_bytes": LENGTH * trunk.n_bytes(1) / read,
            "draft_seconds": drafts,
            "verify_seconds": stats.verify_seconds / stats.passes,
            "choose_seconds": stats.choose_seconds / stats.passes,
            "commit_seconds": stats.commit_seconds / stats.passes,
            **(gain if cell == "speculation" else {}),
        }
        each = [one / ROUNDS / LENGTH for one in seconds]
        yield Found(name, cell, n_plain, each, {"plain, ours": alone}, more)


def _peer(path: Path, n_vocab: int, room: int, threads: int, hold: Hold) -> PeerWriter | None:
    """Return llama.cpp, weights repacked or not, as it drafts faster; with flash attention.

    None where it exports too little.
    """
    from versus.peer_speculation import PeerWriter

    text = np.random.default_rng(3).integers(3, n_vocab, DEPTH + 2 * room).tolist()
    writers = {}
    for repack in (True, False):
        try:
            one = PeerWriter(path, text, DEPTH, threads, (repack, True))
        except AttributeError as error:
            print(f"no drafts by llama.cpp: {error}")
            return None
        writers[one.name] = one
    trials = {name: partial(one.draft, 2) for name, one in writers.items()}
    best = choose(trials, 2, hold=hold)
    for name, one in writers.items():
        if name != best:
            one.close()
    return writers[best]
