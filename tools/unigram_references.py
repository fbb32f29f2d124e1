"""Train two small SentencePiece unigram models, and note what they make of some texts.

    python tools/unigram_references.py tests/data/unigram

Needs sentencepiece. ``NAME.model.xz`` is a model, ``refs.json`` has for each the texts and their
tokens. ``t5`` has T5's special tokens and normalises text (NFKC), ``bytes`` spells what it does not
know in bytes and leaves text as it is.
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
from pathlib import Path

import sentencepiece

CORPUS = """
translate English to German: That is good. Das ist gut.
summarize: the old house at the end of the street had been empty for years, until one evening.
The cat sat on the mat; the dog sat at the door, and nobody said a word about it.
Fix the grammar: He go to school yesterday. He went to school yesterday.
translate English to French: The weather is nice today. Il fait beau aujourd'hui.
question: who wrote the first program? context: Ada wrote it in 1843, for a machine of brass.
"""
TEXTS = [
    "translate English to German: That is good.",
    "  Two   spaces,\ta tab\nand a line  ",
    "",
    " ",
    "\ufb01nd \u2460 \uff28alf\u00adwidth na\u00efve caf\u00e9 \u3000wide",
    "unknown: \u4e2d\u6587 {curly} <tag> \U0001f600!",
    "<pad> and </s> and <unk>",
    "schools schooling unschooled",
    "a\u2581b \u0441\u043b\u043e\u0432\u043e 1843 e\u0301",
    "the " * 40,
]
MODELS = {
    "t5": {
        "vocab_size": 150,
        "normalization_rule_name": "nmt_nfkc",
        "user_defined_symbols": ["<extra_id_0>"],
    },
    "bytes": {
        "vocab_size": 400,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "byte_fallback": True,
    },
}


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, options in MODELS.items():
        written = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS.strip().splitlines() * 3),
            model_writer=written,
            model_type="unigram",
            character_coverage=1.0,
            hard_vocab_limit=False,
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
            num_threads=1,
            minloglevel=2,
            **options,
        )
        made = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
        (folder / f"{name}.model.xz").write_bytes(lzma.compress(written.getvalue(), preset=9))
        found[name] = [[text, made.encode(text)] for text in TEXTS]
    (folder / "refs.json").write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
