"""Conformance: drafting never changes a text."""

from __future__ import annotations

import msgspec

from mtpcore.cross import Cross, DraftSampler
from mtpcore.decoding import Generator, Stats
from mtpcore.draft_vocabulary import DraftVocabulary
from mtpcore.sampling import Sampling
from mtpcore.spec import DrafterSpec
from mtpcore.testing.subject import Subject

__all__ = ["Texts", "check_texts", "decode"]


class Texts(msgspec.Struct, frozen=True):
    """Texts that are decoded together.

    Attributes
    ----------
    k : int
        Longest draft; request i drafts ``max(k - i, 0)``.
    temperature : float
    draft_sampler : {"coupled", "argmax"}
    n_texts, n_tokens, n_prompt : int
        Requests, new tokens of each, and prompt tokens of the first; the others have more.
    n_batch : int
    seed : int
    """

    k: int = 3
    temperature: float = 0.0
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
    options = {"n_seq_max": texts.n_texts, "n_batch": texts.n_batch}
    plain = Cross(llm=subject.context(**options))
    wanted, _ = decode(plain, subject, msgspec.structs.replace(texts, k=0))
    cross = subject.link(drafter=drafter, draft_vocabulary=draft_vocabulary, **options)
    found, stats = decode(cross, subject, texts)
    for i, (one, other) in enumerate(zip(wanted, found, strict=True)):
        assert one == other, f"{subject}, {texts}: text {i} is {other}, plainly {one}"
    return stats.acceptance


def decode(cross: Cross, subject: Subject, texts: Texts) -> tuple[list[list[int]], Stats]:
    """Return the tokens of each request, and what was drafted for them."""
    generator = Generator(cross)
    requests = [
        generator.add(
            subject.text(texts.n_prompt + 9 * i, seed=texts.seed + i).tolist(),
            sampling=Sampling(temperature=texts.temperature, seed=texts.seed, stream=i),
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
