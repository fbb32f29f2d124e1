"""Keep how llama.cpp cuts random texts into words, by each pre-tokenizer that it knows.

    python tools/llama_cpp_words.py PROGRAM SOURCE tests/data/llama_cpp

``PROGRAM`` is ``llama_cpp_words.cpp``, built as its first lines say, ``SOURCE`` the folder of
llama.cpp, whose table of names is read. ``words.npz`` gets ``texts`` in UTF-8, with a zero byte
after each; ``begins`` uint8[n, characters / 8], one bit for each character of all texts: whether a
word begins there; and ``names``, JSON: for each name the row of ``begins``, whether words that are
tokens are taken whole, and whether BOS begins a text.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from mtpcore.gguf import write_model_file
from mtpcore.gguf.header import MetadataValue
from mtpcore.gguf.vocabulary import byte_alphabet

N_TEXTS = 400
WORDS = [
    *("the", "I'll", "don'T", "we'VE", "it's", "'s", "o'clock", "HELLO", "camelCase", "XMLFile"),
    *("naïve", "Über", "ÉTÉ", "straße", "Привет", "МИР", "Ελλάδα", "ΑΒΓ", "ǅ", "İstanbul'da", "ﬁ"),
]
SIGNS = [
    *(
        "==",
        "->",
        "{",
        "}",
        "();",
        "//",
        "/",
        "#!",
        "</b>",
        "$x",
        "`~`",
        "^|",
        "a.b",
        ",",
        "...",
        "…",
    ),
    *("«", "»", "“", "—", "€", "™", "_", "\\", "(", ")", "!", "?", "'", '"', "<sentinel:7>"),
    *(
        "IMGIMGABCZ",
        "\uff01",
        "、",
        "。",
        "\uff0c",
        "\uff1a",
        "\uff5e",
        "「",
        "・",
        "ー",
        "\u06d4",
        "،",
        "।",
        "\ufe4f",
    ),
]
SCRIPTS = [
    (0x4E00, 0x9FA5),  # Han, and so on as the names say
    (0x3041, 0x3096),  # Hiragana
    (0x30A1, 0x30FA),  # Katakana
    (0xAC00, 0xD7A3),  # Hangul
    (0x3105, 0x312F),  # Bopomofo
    (0x0621, 0x0652),  # Arabic, with marks
    (0x05D0, 0x05EA),  # Hebrew
    (0x0E01, 0x0E3A),  # Thai
    (0x0905, 0x0939),  # Devanagari
    (0x1780, 0x17D2),  # Khmer, with marks
]
MARKS = ["e\u0301", "n\u0303\u0308", "שָׁ", "नी", "\u0301", "ก็", "a\u20dd"]
EMOJI = ["🙂", "👩\u200d👩\u200d👧", "🇩🇪", "☝🏽", "❤\ufe0f"]
CONTROLS = ["\x01", "\x1f", "\x7f", "\u200b", "\ufeff", "\u00ad", "\ue000"]
SPACES = [" ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2003", "\u2028", "\v"]


def main() -> None:
    """Cut texts by every pre-tokenizer, and write what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    source = (args.source / "src/llama-vocab.cpp").read_text()
    known = dict.fromkeys(re.findall(r'tokenizer_pre == "([^"]+)"', source))
    texts = write_texts(Random(5))
    names, rows = dict[str, Any](), dict[bytes, int]()
    for name in known:
        flags, begins = cut(args.program, name, texts)
        names[name] = [rows.setdefault(begins, len(rows)), *flags]
    np.savez_compressed(
        args.folder / "words.npz",
        texts=np.frombuffer("".join(text + "\0" for text in texts).encode(), np.uint8),
        begins=np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1),
        names=np.frombuffer(json.dumps(names).encode(), np.uint8),
    )


def write_texts(chance: Random) -> list[str]:
    """Return random texts; a few have long runs of spaces."""
    texts = ["".join(run(chance) for _ in range(chance.randint(3, 14))) for _ in range(N_TEXTS)]
    return [*texts, " " * 700 + "x", "\n" + " " * 300, "a" + " " * 31 + "\n" * 9 + " b"]


def run(chance: Random) -> str:
    """Return a few characters of one kind, often with a space before."""
    script = chance.choice(SCRIPTS)
    kinds: list[Callable[[], str]] = [
        lambda: chance.choice(WORDS),
        lambda: chance.choice(SIGNS) * chance.choice([1, 1, 1, 2]),
        lambda: "".join(chance.choices("0123456789", k=chance.randint(1, 11))),
        lambda: "".join(chr(chance.randint(*script)) for _ in range(chance.randint(1, 4))),
        lambda: chance.choice(SPACES) * chance.choice([1, 1, 2, 3, 8]),
        lambda: chance.choice(chance.choice([MARKS, EMOJI, CONTROLS, ["٣٤٥٦", "१२३", "½²", "Ⅷ"]])),
    ]
    kind = chance.choices(kinds, [5, 4, 3, 3, 4, 2])[0]
    return " " * (chance.random() < 0.4) + kind()


def cut(program: Path, name: str, texts: list[str]) -> tuple[list[bool], bytes]:
    """Return what llama.cpp holds of a pre-tokenizer, and where words begin, a bit a character."""
    given: dict[str, MetadataValue] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": name,
        "tokenizer.ggml.tokens": list(byte_alphabet()),
        "tokenizer.ggml.merges": ["a b"],
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.gguf"
        write_model_file(path, "llama", given, {})
        asked = "".join(text + "\0" for text in texts).encode()
        done = subprocess.run([program, path], input=asked, capture_output=True, check=True)
    flags, *lines = done.stdout.decode().splitlines()
    begins = np.zeros(sum(map(len, texts)), bool)
    begins[np.cumsum([0, *(int(n) for line in lines for n in line.split())])[:-1]] = True
    return [flag == "1" for flag in flags.split()], np.packbits(begins).tobytes()


if __name__ == "__main__":
    main()
