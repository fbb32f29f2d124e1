"""Keep which tokens llama.cpp makes of random texts with a vocabulary like PLaMo's.

    python tools/llama_cpp_tokens.py PROGRAM tests/data/llama_cpp

``PROGRAM`` is ``llama_cpp_tokens.cpp``, built as its first lines say. ``plamo.json`` gets
``lines``, the vocabulary as it is published, and ``texts``, pairs of a text and its ids. Many
pieces have equal scores, and some texts characters that are in no piece.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random

from llama_cpp_words import write_texts

sys.path.insert(0, str(Path(__file__).parents[1]))

from mtpcore.conversion.vocabulary_lines import vocabulary_of_lines
from mtpcore.gguf import write_model_file

N_PIECES, LONGEST = 900, 7
UNLIKELY = {"\u2126a": -30.0, "bcdefg": -30.0, "abcdefg": -1.0}
"""Of the text of both a character that is no piece alone makes the likelier tokens, were it one."""
SPECIAL = ["unk", "bos", "eos", "pad", "op"]


def main() -> None:
    """Cut texts, and write what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    chance = Random(6)
    texts = [text.replace("\ufeff", "") for text in write_texts(chance)[:120]]
    texts += ["\ufeffthe text", "the \ufeff text", "", "  two  spaces \u2581 and a sign"]
    lines = vocabulary(chance, texts)
    texts.append("\u2126abcdefg")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
        model = path.with_name("vocabulary.gguf")
        write_model_file(model, "llama", vocabulary_of_lines(path, None), {})
        asked = "".join(text + "\0" for text in texts).encode()
        done = subprocess.run([args.program, model], input=asked, capture_output=True, check=True)
    ids = [[*map(int, line.split())] for line in done.stdout.decode().splitlines()]
    kept = {"lines": lines, "texts": [*zip(texts, ids, strict=True)]}
    (args.folder / "plamo.json").write_text(json.dumps(kept, ensure_ascii=False) + "\n", "utf-8")


def vocabulary(chance: Random, texts: list[str]) -> list[list[str | float]]:
    """Return special tokens, bytes, and pieces of the texts."""
    lines: list[list[str | float]] = [
        [f"<|plamo:{name}|>", 0.0, "UNKNOWN" if name == "unk" else "CONTROL"] for name in SPECIAL
    ]
    lines += [[f"<0x{byte:02X}>", 0.0, "BYTE"] for byte in range(256)]
    found = dict(UNLIKELY)
    while len(found) < N_PIECES:
        text = chance.choice([text for text in texts if text])
        at = chance.randrange(len(text))
        piece = text[at : at + chance.randint(1, LONGEST)]
        found[piece] = -chance.choice([2.0, 4.0, 8.0, chance.uniform(1, 9)]) * len(piece) ** 0.7
    return lines + [[piece, score, "NORMAL"] for piece, score in found.items()]


if __name__ == "__main__":
    main()
