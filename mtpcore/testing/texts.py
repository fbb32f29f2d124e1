"""Conformance: drafting never changes a text."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from mtpcore.boundary.arguments import Whole31, expect, read
from mtpcore.cross import Cross, DraftSampler
from mtpcore.declarations.spec import DrafterSpec
from mtpcore.decoding import Generator, Stats
from mtpcore.drafting.draft_vocabulary import DraftVocabulary
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.output import Output
from mtpcore.sampling import Sampling
from mtpcore.testing.pairs import cover_pairs
from mtpcore.testing.subject import Subject

__all__ = ["Texts", "check_broken_rows", "check_texts", "cover_texts", "decode"]

_KINDS: dict[str, tuple[Any, ...]] = {
    "k": tuple(range(9)),
    "temperature": (0.0, 0.7, 1.5),
    "top_k": (0, 1, 20),
    "top_p": (1.0, 0.6),
    "min_p": (0.0, 0.1),
    "repetition_penalty": (1.0, 1.3),
    "frequency_penalty": (0.0, 0.3, -0.2),
    "presence_penalty": (0.0, 0.5),
    "penalty_last_n": (-1, 5),
    "dry_multiplier": (0.0, 0.8),
    "top_n_sigma": (0.0, 1.5),
    "typical_p": (1.0, 0.7),
    "xtc_probability": (0.0, 0.5),
    "dynatemp_range": (0.0, 0.5),
    "biased": (False, True),
    "seed": (5, 2**64 - 1),
    "stream": (0, 2**40),
    "draft_sampler": ("coupled", "argmax"),
    "n_texts": (1, 3),
    "n_batch": (4, 512),
}


class Texts(msgspec.Struct, frozen=True):
    """Texts that are decoded together.

    Attributes
    ----------
    k : int
        Longest draft; request i drafts ``max(k - i, 0)``.
    sampling : Sampling
        Of request 0; of request i the stream is i further on.
    draft_sampler : {"coupled", "argmax"}
    n_texts, n_tokens, n_prompt : int
        Requests, new tokens of each, and prompt tokens of the first; the others have more.
    n_batch : int
    seed : int
        Of the prompts.
    """

    k: int = 3
    sampling: Sampling = Sampling.greedy()
    draft_sampler: DraftSampler = "coupled"
    n_texts: int = 3
    n_tokens: int = 40
    n_prompt: int = 7
    n_batch: int = 512
    seed: int = 5


def check_texts(
    subject: Subject,
    texts: Texts,
    drafter: DrafterSpec | None = None,
    draft_vocabulary: DraftVocabulary | None = None,
) -> float:
    """Decode with and without drafts and compare the tokens.

    Parameters
    ----------
    texts : Texts
        How many, how long, and with which settings.
    drafter : DrafterSpec, optional
        A variant of the family's drafter, a tree for example.
    draft_vocabulary : DraftVocabulary, optional
        What it may draft.

    Returns
    -------
    float
        How many drafts were accepted, of those made.

    Raises
    ------
    AssertionError
        A text differs.
    """
    expect(subject, Subject, "a subject under test")
    expect(texts, Texts, "texts to compare")
    options: dict[str, Any] = {"n_seq_max": texts.n_texts, "n_batch": texts.n_batch}
    cross = subject.link(drafter=drafter, draft_vocabulary=draft_vocabulary, **options)
    return _compare(cross, subject, texts).acceptance


def _compare(cross: Cross, subject: Subject, texts: Texts) -> Stats:
    """Decode without drafts and with this Cross; return the statistics."""
    plain = Cross(llm=subject.context(n_seq_max=texts.n_texts, n_batch=texts.n_batch))
    wanted, _ = decode(plain, subject, msgspec.structs.replace(texts, k=0))
    decoded, stats = decode(cross, subject, texts)
    for i, (expected, other) in enumerate(zip(wanted, decoded, strict=True)):
        assert expected == other, f"{subject}, {texts}: text {i} is {other}, plainly {expected}"
    return stats


def cover_texts(n_tokens: int = 16) -> list[Texts]:
    """Return settings for ``check_texts``: each pair of values of two settings occurs in one.

    Kinds are draft lengths of 0 to 8, temperatures, every sampler and bias, seeds, streams,
    both samplers of drafts, and how many requests share batches of which size.

    Parameters
    ----------
    n_tokens : int
        New tokens of each text.
    """
    n_tokens = read(n_tokens, Whole31, "a number of tokens", where="cover_texts")
    settings = []
    for point in cover_pairs(_KINDS, n_candidates=50):
        ours = {name: point.pop(name) for name in ("k", "draft_sampler", "n_texts", "n_batch")}
        bias = {1: 3.0, 2: -float("inf"), 7: -1.5} if point.pop("biased") else None
        sampling = Sampling(
            logit_bias=bias, dry_sequence_breakers=(3,), xtc_threshold=0.01, **point
        )
        settings.append(Texts(sampling=sampling, n_tokens=n_tokens, **ours))
    return settings


def check_broken_rows(subject: Subject, place: int, sampling: Sampling | None = None) -> int:
    """Replace the hidden rows that the drafter reads by NaN from a place on, and compare the texts.

    The target's own logits stay as they are. Drafts end where the broken rows begin.

    Parameters
    ----------
    place : int
        Of the first broken row in each sequence.
    sampling : Sampling, optional
        Of the texts.

    Returns
    -------
    int
        How many tokens were drafted before.

    Raises
    ------
    AssertionError
        A text differs, or something was drafted of broken rows.
    """
    expect(subject, Subject, "a subject under test")
    texts = Texts(sampling=sampling or Sampling.greedy(), n_texts=2, n_tokens=24)
    cross = subject.link(n_seq_max=texts.n_texts, n_batch=texts.n_batch)
    taps = [tap for feed in subject.spec.feeds if feed.src == "target" for tap in feed.taps]
    assert taps, f"{subject}: the drafter reads nothing of the target"

    runner = cross.llm.runner
    deliver = runner.deliver
    assert deliver is not None  # a Cross takes what its target makes

    def spoil(batch: Batch, output: Output) -> None:
        arrays = {name: output.tap(name).copy() for name in output.names}
        for tap in taps:
            arrays[tap][output.place >= place] = np.nan
        spoilt = Output(output.seq, output.place, output.outputs, output.rows_of_seq, arrays)
        deliver(batch, spoilt)

    runner.deliver = spoil
    stats = _compare(cross, subject, texts)
    assert cross.paused, f"{subject}: broken rows from place {place} on were not noticed"
    if place == 0:
        assert not stats.drafted, f"{subject}: {stats.drafted} tokens are drafted of broken rows"
    return stats.drafted


def decode(cross: Cross, subject: Subject, texts: Texts) -> tuple[list[list[int]], Stats]:
    """Return the tokens of each request, and what was drafted for them."""
    generator = Generator(cross)
    requests = [
        generator.add(
            subject.text(texts.n_prompt + 9 * i, seed=texts.seed + i).tolist(),
            sampling=msgspec.structs.replace(texts.sampling, stream=texts.sampling.stream + i),
            draft=max(texts.k - i, 0),
            max_tokens=texts.n_tokens,
            ignore_eos=True,
            draft_sampler=texts.draft_sampler,
        )
        for i in range(texts.n_texts)
    ]
    while any(request.finish_reason is None for request in requests):
        generator.step()
    return [request.tokens for request in requests], generator.stats
