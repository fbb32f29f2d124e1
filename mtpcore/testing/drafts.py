"""Conformance: drafts are those of the reference backend, and those of the author's formula."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike, NDArray

from mtpcore.boundary.arguments import Finite, Length, expect, read
from mtpcore.boundary.arrays import numbers
from mtpcore.cross import Cross
from mtpcore.declarations.draft_tree import DraftTree
from mtpcore.declarations.spec import DrafterSpec, TreeShape
from mtpcore.errors import BatchError, spell
from mtpcore.graph import GraphType
from mtpcore.runtime.batch import Batch
from mtpcore.sampling import Sampling
from mtpcore.testing.subject import Subject

__all__ = ["Scores", "check_drafts"]

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
Scores = Callable[[I32, Mapping[str, F32], Sequence[int]], ArrayLike]
"""An author's own head: ``scores(tokens, rows, drafts)``, float[len(drafts), n_vocab].

``tokens`` int32[n + 1] are the text, its pending token last; ``rows`` are the target's rows of all
tokens but that one, float32[n, width] by tap, every tap that the target offers; ``drafts`` are the
tokens that were drafted. Row i of what it returns are the logits that draft i was chosen from, with
the drafts before it in the text: of every token of the target's vocabulary, -inf for those that
cannot be drafted. Of a tree ``drafts`` are one path from the pending token to a leaf.
"""

_TokenCount = Annotated[int, Meta(ge=1, le=1 << 16, description="1..65536")]
SAMPLED = Sampling(temperature=1.0, seed=5)


def check_drafts(
    subject: Subject,
    scores: Scores | None = None,
    drafter: DrafterSpec | None = None,
    *,
    k: int = 3,
    n_tokens: int = 24,
    kv_dtype: str = "f16",
    bound: float = 0.1,
    seed: int = 0,
) -> int:
    """Compare drafts at every position of a text with those of the definition and of ``scores``.

    Text never depends on drafts, so a comparison of texts cannot find a wrong head, which is only
    slow. Here each draft, greedy and sampled, must equal the draft of the same graphs on
    ``mtpcore.backends.reference``, and each greedy one must have the best score by the author's
    function; in a tree a node's second child the second best score, and so on.

    Parameters
    ----------
    scores : callable, optional
        The head in plain NumPy or PyTorch, written without mtpcore; see ``Scores``.
    drafter : DrafterSpec, optional
        A variant of the subject's drafter, as one that drafts trees.
    k : int
        Drafts after each token; of a tree the levels.
    n_tokens : int
        Of the text, which is drawn at random.
    kv_dtype : {"f16", "f32", "q8_0"}
        Of all contexts.
    bound : float
        How far a draft's score may be from the best (a second child's from the second best, ...),
        in standard deviations of the row's: other orders of sums, quantised activations and stored
        keys move a score by some hundredths.
    seed : int
        Of the text.

    Returns
    -------
    int
        How many drafts were compared.

    Raises
    ------
    AssertionError
        Nothing was drafted, or drafts differ: names place, drafts and scores.
    """
    expect(subject, Subject, "a subject under test")
    if scores is not None and not callable(scores):
        raise BatchError("scores is a function", where="check_drafts", got=spell(scores))
    k = read(k, Length, "a number of drafts", where="check_drafts")
    n_tokens = read(n_tokens, _TokenCount, "a number of tokens", where="check_drafts")
    bound = read(bound, Finite, "a number of standard deviations", where="check_drafts")
    taps = subject.model.program(GraphType.LLM).taps
    options: dict[str, Any] = {"kv_dtype": kv_dtype, "threads": 2, "taps": taps}
    tested = subject.link(drafter=drafter, **options)
    wanted = subject.link(drafter=drafter, backend=subject.definition, **options)
    shape = (subject.spec if drafter is None else drafter).tree
    tokens = subject.text(n_tokens, seed)
    rows: dict[str, list[F32]] = {tap: [] for tap in taps}
    n_drafts = 0
    for place, token in enumerate(tokens.tolist()):
        outputs = [cross.llm.process(Batch.of([token], pos=place)) for cross in (tested, wanted)]
        for tap in rows:
            rows[tap].append(outputs[0].tap(tap))
        where = f"{subject}, after token {place}"
        for sampling in (Sampling.greedy(), SAMPLED):
            drafts, right = (_draft(cross, k, sampling) for cross in (tested, wanted))
            assert _plain(drafts) == _plain(right), (
                f"{where}: drafts are {_plain(drafts)}, by definition {_plain(right)}"
            )
            n_drafts += len(drafts)
            if scores is not None and not sampling.temperature:
                pending = tested.pending(0, sampling)
                text = np.array([*tokens[: place + 1], pending], np.int32)
                given = {tap: np.concatenate(parts) for tap, parts in rows.items()}
                ranks = _ranks(drafts, shape)
                for path in _paths(drafts):
                    ids = drafts.tokens[path].tolist()
                    kept = [ranks[node] for node in path]
                    _check_scores(scores(text, given, ids), ids, kept, bound, where)
    assert n_drafts, f"{subject}: nothing was drafted"
    return n_drafts


def _draft(cross: Cross, k: int, sampling: Sampling) -> DraftTree:
    """Return what was drafted; a chain as the tree that it is."""
    drafted = cross.draft(0, k, sampling)
    if isinstance(drafted, DraftTree):
        return drafted
    return DraftTree(np.asarray(drafted, np.int32), np.arange(-1, len(drafted) - 1))


def _plain(drafts: DraftTree) -> list[int] | dict[str, list[int]]:
    tokens = drafts.tokens.tolist()
    return tokens if drafts.is_chain else {"tokens": tokens, "parent": drafts.parent.tolist()}


def _paths(drafts: DraftTree) -> Iterator[list[int]]:
    """Return the nodes on the way to each leaf."""
    for leaf in np.setdiff1d(np.arange(len(drafts)), drafts.parent).tolist():
        path = [leaf]
        while (above := int(drafts.parent[path[-1]])) >= 0:
            path.append(above)
        yield path[::-1]


def _ranks(drafts: DraftTree, shape: TreeShape | None) -> list[int]:
    """Return each node's rank among all tokens that might stand there; 0 is the best.

    Siblings come best first; a tree of fixed paths may skip ranks, as its declaration says.
    """
    paths = () if shape is None else shape.paths
    starts = dict.fromkeys(path[:n] for path in paths for n in range(1, len(path) + 1))
    ways: dict[int, tuple[int, ...]] = {-1: ()}
    n_siblings: Counter[int] = Counter()
    for node, above in enumerate(drafts.parent.tolist()):
        rank = n_siblings[above]
        if starts:
            rank = [start[-1] for start in starts if start[:-1] == ways[above]][rank]
        ways[node] = (*ways[above], rank)
        n_siblings[above] += 1
    return [ways[node][-1] for node in range(len(drafts))]


def _check_scores(
    scores: ArrayLike, drafts: list[int], ranks: list[int], bound: float, where: str
) -> None:
    """Raise AssertionError where a draft has not nearly the score of its rank."""
    rows = numbers(scores, f"{where}: scores").astype(np.float64)
    shape = f"{list(rows.shape)} scores for {len(drafts)} drafts"
    assert rows.shape[:-1] == (len(drafts),), f"{where}: {shape}"
    for i, (row, draft, rank) in enumerate(zip(rows, drafts, ranks, strict=True)):
        assert draft < len(row), f"{where}: {shape}, of which one is token {draft}"
        right = int(np.argsort(-row, kind="stable")[rank])
        spread = float(np.std(row[np.isfinite(row)]))
        assert abs(row[draft] - row[right]) <= bound * spread, (
            f"{where}: draft {i} of {drafts} is {draft} with score {row[draft]:.4g} by the "
            f"author's function, by which token {right} with {row[right]:.4g} is number {rank + 1}"
        )
