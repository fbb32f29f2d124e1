"""What n-gram drafters find in recorded texts: ours, and others' in a few lines each.

    python benchmarks/lookup.py [-k 4,8,16] [--task "code edit"] [--long 8192]

The texts are those of ``record_rounds.py``; every drafter is asked where a generator would ask it.
With ``--long`` it is one long text instead, the source of mtpcore in the demo's tokens, from its
middle on. The speed-up is that over plain decoding, from what passes cost that were recorded; the
time of a call is left out of it. The others are written in plain Python for what they find, not for
speed, each with the settings of its authors.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness.replay import recorded

import mtpcore
from mtpcore.drafting.lookup import Lookup

__all__ = ["DRAFTERS"]

SOURCE = Path(mtpcore.__file__).parent
Draft = Callable[[list[int], int], list[int]]
"""From a text and how many tokens are wanted to what follows."""


class Text(NamedTuple):
    """A text, and how much of it is there before anything is drafted."""

    tokens: list[int]
    n_prompt: int


def ours(others: int = 0) -> Draft:
    """Propose what mtpcore does, in as many tokens of texts before, too."""
    lookup = Lookup(others=others)

    def propose(text: list[int], k: int) -> list[int]:
        found = lookup.find(0, np.array(text, np.int32), k)
        return found.draft[: found.n_sure]

    return propose


def all_that_followed(text: list[int], k: int) -> list[int]:
    """Propose what mtpcore finds, however short the match."""
    return Lookup().find(0, np.array(text, np.int32), k).draft


def prompt_lookup(text: list[int], k: int) -> list[int]:
    """Take the latest place of the last four tokens, three or two (Saxena 2023)."""
    for n in (4, 3, 2):
        place = latest(text, n)
        if place is not None:
            return text[place : place + k]
    return []


def sam_decoding() -> Draft:
    """Take the first place of the longest suffix (Hu et al. 2024): a suffix automaton's link."""
    lengths, links, ends, moves = [0], [-1], [0], [dict[int, int]()]
    last, n_read = 0, 0

    def add(length: int, link: int, end: int, onward: dict[int, int]) -> int:
        for values, value in ((lengths, length), (links, link), (ends, end)):
            values.append(value)
        moves.append(onward)
        return len(moves) - 1

    def read(token: int, place: int) -> int:
        at, new = last, add(lengths[last] + 1, 0, place, {})
        while at >= 0 and token not in moves[at]:
            moves[at][token] = new
            at = links[at]
        if at < 0:
            return new
        to = moves[at][token]
        if lengths[to] > lengths[at] + 1:
            copy = add(lengths[at] + 1, links[to], ends[to], dict(moves[to]))
            while at >= 0 and moves[at].get(token) == to:
                moves[at][token] = copy
                at = links[at]
            links[to] = to = copy
        links[new] = to
        return new

    def draft(text: list[int], k: int) -> list[int]:
        nonlocal last, n_read
        for place in range(n_read, len(text)):
            last = read(text[place], place)
        n_read = len(text)
        found = links[last]
        return text[ends[found] + 1 :][:k] if found > 0 and lengths[found] > 1 else []

    return draft


def rest(text: list[int], k: int) -> list[int]:
    """Take the most frequent branch after the longest suffix, of 16 tokens at most (He 2023)."""
    for n in range(16, 1, -1):
        if places := [*all_places(text, n)]:
            break
    else:
        return []
    draft: list[int] = []
    while len(draft) < k:
        after = [place for place in places if place + len(draft) < len(text)]
        follows = Counter(text[place + len(draft)] for place in after)
        if not follows:
            break
        token = follows.most_common(1)[0][0]
        places = [place for place in after if text[place + len(draft)] == token]
        draft.append(token)
    return draft


def ngram_simple(text: list[int], k: int, *, n: int, m: int) -> list[int]:
    """Take up to m tokens after the latest place of n tokens, if n or more are there."""
    place = latest(text, n) if len(text) > n + m + 1 else None
    copied = [] if place is None else text[place : place + m]
    return copied[:k] if len(copied) >= n else []


def ngram_map_k(text: list[int], k: int, *, n: int, m: int) -> list[int]:
    """Take m tokens after the latest place of n tokens that as many follow."""
    place = latest(text[:-m], n, of=text) if len(text) >= 2 * n + m else None
    return [] if place is None else text[place : place + m][:k]


def ngram_map_k4v(text: list[int], k: int, *, n: int, m: int) -> list[int]:
    """As ``ngram_map_k``, where m tokens follow three times as often as all others (of four)."""
    drafted = ngram_map_k(text, m, n=n, m=m)
    values = Counter(tuple(text[p : p + m]) for p in all_places(text, n) if p + m <= len(text))
    counts = sorted([*values.values()][:4], reverse=True)
    return drafted[:k] if counts and counts[0] >= 3 * sum(counts[1:]) else []


def ngram_mod(*, n: int, least: int) -> Draft:
    """Go from n tokens to the last one that followed them, in a table; drop short drafts."""
    follows: dict[tuple[int, ...], int] = {}

    def draft(text: list[int], k: int) -> list[int]:
        for end in range(n, len(text)):
            follows[tuple(text[end - n : end])] = text[end]
        made = text[-n:]
        while (
            len(made) - n < max(k, least) and (token := follows.get(tuple(made[-n:]))) is not None
        ):
            made.append(token)
        return made[n : n + k] if len(made) - n >= least else []

    return draft


def ngram_cache(text: list[int], k: int) -> list[int]:
    """Take token by token what mostly followed the last four tokens, three, two or one."""
    counts: dict[tuple[int, ...], Counter[int]] = {}
    for n in range(1, 5):
        for end in range(n, len(text)):
            counts.setdefault(tuple(text[end - n : end]), Counter())[text[end]] += 1
    made = [*text]
    while len(made) - len(text) < k:
        for n, least, share in ((4, 1, 0.5), (3, 1, 0.5), (2, 2, 0.5), (1, 2, 0.66)):
            follows = counts.get(tuple(made[-n:]), Counter())
            n_all = follows.total()
            if n_all >= least and follows.most_common(1)[0][1] >= share * n_all:
                made.append(follows.most_common(1)[0][0])
                break
        else:
            break
    return made[len(text) :]


def all_places(text: list[int], n: int) -> Iterator[int]:
    """Yield what follows each place of the last n tokens, the latest first."""
    key = text[-n:]
    for end in range(len(text) - 1, n - 1, -1):
        if text[end - 1] == key[-1] and text[end - n : end] == key:
            yield end


def latest(text: list[int], n: int, of: list[int] | None = None) -> int | None:
    """Return what follows the latest place of the last n tokens, or of those of another text."""
    key = (of or text)[-n:]
    ends = range(len(text) - (0 if of else 1), n - 1, -1)
    return next((end for end in ends if text[end - n : end] == key), None)


DRAFTERS: dict[str, Callable[[], Draft]] = {
    "mtpcore": ours,
    "mtpcore, all that followed": lambda: all_that_followed,
    "prompt lookup (4 to 2)": lambda: prompt_lookup,
    "SAM decoding (from 2)": sam_decoding,
    "REST's search, in the text": lambda: rest,
    "llama.cpp ngram-simple (12, 48)": lambda: partial(ngram_simple, n=12, m=48),
    "llama.cpp ngram-simple (3, 16)": lambda: partial(ngram_simple, n=3, m=16),
    "llama.cpp ngram-map-k (12, 48)": lambda: partial(ngram_map_k, n=12, m=48),
    "llama.cpp ngram-map-k (3, 16)": lambda: partial(ngram_map_k, n=3, m=16),
    "llama.cpp ngram-map-k4v (3, 16)": lambda: partial(ngram_map_k4v, n=3, m=16),
    "llama.cpp ngram-mod (24, 48)": lambda: ngram_mod(n=24, least=48),
    "llama.cpp ngram-mod (3, 1)": lambda: ngram_mod(n=3, least=1),
    "llama.cpp ngram-cache": lambda: ngram_cache,
}
"""What makes each drafter, for one text."""
TOGETHER: dict[str, Callable[[], Draft]] = {
    "mtpcore, in the texts before, too": partial(ours, others=1 << 16)
}
"""What makes drafters for all texts, one after the other."""


def main() -> None:
    """Replay and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-k", default="4,8,16", help="tokens that are asked for, at most")
    parser.add_argument("--task", help="one of the tasks (default: all)")
    parser.add_argument("--long", type=int, metavar="N", help="a long text of N tokens instead")
    options = parser.parse_args()
    lengths = [int(k) for k in options.k.split(",")]
    texts = [_long(options.long)] if options.long else [*_recorded(options.task)]
    print("| drafter |" + "".join(f" {k}: tokens a pass | accepted | speed-up |" for k in lengths))
    print("| --- " * (1 + 3 * len(lengths)) + "|")
    for name, make in (TOGETHER | DRAFTERS).items():
        cells = [cell for k in lengths for cell in _replay(make, texts, k, name in TOGETHER)]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print(
        "\n| tokens of the text | "
        + " | ".join(row := ["found", "in vain", "of a new text"])
        + " |"
    )
    print("| --- " * (1 + len(row)) + "|")
    for n in (256, 4096, 32768):
        print(f"| {n} | " + " | ".join(f"{us:.1f} us" for us in _microseconds(n)) + " |")


def _recorded(task: str | None) -> Iterator[Text]:
    for name, of_task in recorded()["tasks"].items():
        if task in (None, name):
            for prompt, text in of_task["texts"]:
                yield Text([*prompt, *text], len(prompt) + 1)  # the first one comes with the prompt


def _long(n: int) -> Text:
    source = "".join(file.read_text() for file in sorted(SOURCE.rglob("*.py")))
    with mtpcore.load_model("demo") as model:
        return Text(model.tokenizer.encode(source[: 8 * n])[:n], n // 2)


def _replay(
    make: Callable[[], Draft], texts: list[Text], k: int, together: bool
) -> tuple[str, str, str]:
    """Return tokens a pass, the share of proposed ones that is accepted, and the speed-up."""
    passes = recorded()["passes"]["1"]
    rows, costs = [*map(int, passes)], [*passes.values()]
    n_tokens, n_passes, n_proposed, seconds = 0, 0, 0, 0.0
    draft = make()
    for tokens, at in texts:
        draft = draft if together else make()
        while at < len(tokens):
            proposed = draft(tokens[:at], min(k, len(tokens) - at - 1))
            pairs = zip(proposed, tokens[at:], strict=False)
            right = [*(a == b for a, b in pairs), False].index(False)
            n_tokens, n_passes = n_tokens + right + 1, n_passes + 1
            n_proposed += len(proposed)
            seconds += float(np.interp(1 + len(proposed), rows, costs))
            at += right + 1
    accepted = (n_tokens - n_passes) / max(n_proposed, 1)
    return f"{n_tokens / n_passes:.2f}", f"{accepted:.2f}", f"{n_tokens * costs[0] / seconds:.2f}"


def _microseconds(n: int) -> list[float]:
    """Return what a call of ours costs in a text of n tokens that has one more each time.

    Then what the first one does.
    """
    found = np.tile(np.random.default_rng(n).integers(0, 9999, n // 4), 5).astype(np.int32)
    medians, first = [], []
    for text in (found, np.arange(2 * n, dtype=np.int32)):
        lookup, took = Lookup(), []
        for i in range(200):
            view = text[: n + i % (n // 4)]
            begin = perf_counter()
            lookup.propose(0, view, 8)
            took.append(perf_counter() - begin)
        medians.append(1e6 * float(np.median(took)))
        first.append(1e6 * took[0])
    return [*medians, max(first)]


if __name__ == "__main__":
    main()
