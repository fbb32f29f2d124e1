"""What the masks of a grammar cost, of a vocabulary of 150,000 tokens.

    python benchmarks/grammars.py [--tokens 150000] [--rounds 400]

The vocabulary is made of what stands in Python's library: all bytes, then its most frequent words,
with the space before them and cut to each length. Texts are JSON of three schemas, written token by
token; a round makes the masks of one row, or of four: the text and three drafts, which are what
follows. Printed are microseconds of the processor, on which other programs then count for nothing,
and what goes into a token's time where a model takes ten milliseconds for each: a hundred tokens a
second.
"""

from __future__ import annotations

import argparse
import json
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time
from types import SimpleNamespace
from typing import Any

import numpy as np

from mtpcore.gguf.vocabulary import CONTROL, NORMAL
from mtpcore.sampling import Grammar, GrammarCompiler, fill_masks

TOKEN_SECONDS = 0.01
_WORD = re.compile(rb" ?[A-Za-z_]+| ?\d{1,3}|\s+|[^\sA-Za-z_\d]+")
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "email": {"type": "string", "pattern": r"^[a-z.]+@[a-z]+\.(org|com)$"},
        "born": {"type": "string", "format": "date"},
        "roles": {"type": "array", "items": {"enum": ["reader", "writer", "owner"]}},
        "score": {"type": "number"},
        "about": {"type": "string"},
    },
    "required": ["name", "email", "born", "roles", "score", "about"],
    "additionalProperties": False,
}
CASES: dict[str, tuple[Grammar, Any]] = {
    "any object": (
        Grammar.of_schema({"type": "object"}),
        {"title": "a text of several words", "items": [1, 2.5, {"deep": [True, None]}], "n": 12},
    ),
    "a record": (
        Grammar.of_schema(PERSON),
        {
            "name": "Ada of the north",
            "email": "ada.north@example.org",
            "born": "1815-12-10",
            "roles": ["reader", "owner"],
            "score": 9.75,
            "about": "She wrote the first program, and said what such machines might do later on.",
        },
    ),
    "a list of records": (
        Grammar.of_schema({"type": "array", "items": PERSON}),
        [
            {
                "name": name,
                "email": "someone@example.com",
                "born": "1990-01-02",
                "roles": [],
                "score": 1,
                "about": "nothing much",
            }
            for name in ("Someone", "Somebody else")
        ],
    ),
}


class FrequentWords:
    """A tokenizer of frequent words and of all bytes; it takes the longest token first."""

    def __init__(self, n_vocab: int) -> None:
        found = Counter[bytes]()
        for path in sorted(Path(sysconfig.get_path("stdlib")).glob("[a-s]*/*.py")):
            found.update(_WORD.findall(path.read_bytes()))
        words = Counter[bytes]()
        for word, count in found.items():
            for n in range(2, min(len(word), 16) + 1):
                words[word[:n]] += count
        frequent = [word for word, _ in words.most_common(n_vocab - 257)]
        self.tokens = [bytes([byte]) for byte in range(256)] + frequent
        self.tokens += [b"<end>"]
        self.n_vocab = len(self.tokens)
        self.end_tokens = frozenset([self.n_vocab - 1])
        self.vocabulary = SimpleNamespace(types=[NORMAL] * (self.n_vocab - 1) + [CONTROL])
        self._ids = {word: token for token, word in enumerate(self.tokens[:-1])}

    def token_bytes(self, token: int) -> bytes:
        """Return what a token stands for."""
        return self.tokens[token]

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Return the tokens of a text."""
        return [*self._cut(text.encode())]

    def _cut(self, data: bytes) -> Iterator[int]:
        begin = 0
        while begin < len(data):
            end = next(n for n in range(begin + 16, begin, -1) if data[begin:n] in self._ids)
            yield self._ids[data[begin:end]]
            begin = min(end, len(data))


def measure(
    compiler: GrammarCompiler, grammar: Grammar, tokens: list[int], n_drafts: int, rounds: int
) -> list[float]:
    """Return the seconds of rounds along a text, again and again from its beginning."""
    text = np.array(tokens, np.int32)
    seconds: list[float] = []
    matcher = compiler.matcher(grammar)
    while len(seconds) < rounds:
        for n in range(0, len(tokens), n_drafts + 1):
            begin = thread_time()
            fill_masks([(matcher, text[:n], tokens[n : n + n_drafts])])
            seconds.append(thread_time() - begin)
    return seconds


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tokens", type=int, default=150_000)
    parser.add_argument("--rounds", type=int, default=400)
    options = parser.parse_args()
    tokenizer: Any = FrequentWords(options.tokens)
    compiler = GrammarCompiler(tokenizer, tokenizer.n_vocab)
    begin = perf_counter()
    compiler.matcher(Grammar.of_regex("a"))
    print(f"vocabulary of {tokenizer.n_vocab:,} tokens: {perf_counter() - begin:.2f} s, once")
    print("| text | compiling, ms | tokens | rows | median, us | mean | 99 % | of a token's time |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, (grammar, value) in CASES.items():
        begin = perf_counter()
        compiler.matcher(grammar)
        compiling = 1e3 * (perf_counter() - begin)
        tokens = tokenizer.encode(json.dumps(value))
        for n_drafts in (0, 3):
            seconds = measure(compiler, grammar, tokens, n_drafts, options.rounds)
            middle, mean, most = (
                1e6 * s for s in (median(seconds), np.mean(seconds), np.quantile(seconds, 0.99))
            )
            share = mean / 1e6 / TOKEN_SECONDS / (n_drafts + 1)
            print(
                f"| {name} | {compiling:.1f} | {len(tokens)} | {n_drafts + 1} | {middle:.0f} | "
                f"{mean:.0f} | {most:.0f} | {100 * share:.1f} % |"
            )


if __name__ == "__main__":
    main()
