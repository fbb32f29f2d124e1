"""Training text: the standard library of the running CPython, and a tokenizer made from it.

The text is under the PSF licence and present wherever CPython is. What repeats itself (character
tables), what is not a library (demonstrations, build data) and every test directory is left out.
One file in twenty, chosen by a hash of its path, is held out and never trained on.
"""

import hashlib
import random
import sysconfig
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ["<|endoftext|>", "[gMASK]", "<|user|>", "<|assistant|>", "<|observation|>"]
END_OF_TEXT = 0

# The pre-tokeniser that GGUF calls "qwen2": contractions, words, single digits, punctuation with
# the newlines after it, white space.
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_LEFT_OUT = {
    "__phello__",
    "encodings",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "site-packages",
    "test",
    "tests",
    "turtledemo",
}
_LEFT_OUT_FILES = ("_sysconfigdata", "html/entities.py", "antigravity.py", "this.py")


class Corpus(NamedTuple):
    """Texts by path relative to the standard library."""

    train: dict[str, str]
    held_out: dict[str, str]


def _is_wanted(path: str) -> bool:
    folders = set(path.split("/")[:-1])
    if folders & _LEFT_OUT or any(f.startswith(("config-", "test")) for f in folders):
        return False
    return not path.startswith(_LEFT_OUT_FILES)


def read_corpus(held_out_one_in: int = 20) -> Corpus:
    """Read the standard library's sources and split them by a hash of each path.

    Parameters
    ----------
    held_out_one_in
        One file in so many is held out.
    """
    root = Path(sysconfig.get_path("stdlib"))
    corpus = Corpus({}, {})
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root).as_posix()
        if not _is_wanted(path):
            continue
        text = file.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n")
        if text.strip():
            number = int.from_bytes(hashlib.sha256(path.encode()).digest()[:4], "big")
            (corpus.held_out if number % held_out_one_in == 0 else corpus.train)[path] = text
    return corpus


def make_tokenizer(model: models.BPE) -> Tokenizer:
    """Put the "qwen2" split and the byte alphabet around a BPE model."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train_tokenizer(texts: list[str], n_vocab: int) -> Tokenizer:
    """Train a byte-level BPE with the "qwen2" split; deterministic, as BPE counts are.

    While it learns, newlines are split off as well, so that no token joins them to the character
    before. Otherwise a prompt that ends with a line, such as `def f(x):`, would end in a token
    that in all the training text never stands before a newline.
    """
    tokenizer = make_tokenizer(models.BPE())
    qwen2 = tokenizer.pre_tokenizer
    newlines = pre_tokenizers.Split(Regex(r"[\r\n]+"), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([newlines, qwen2])
    trainer = trainers.BpeTrainer(
        vocab_size=n_vocab,
        special_tokens=[AddedToken(token, special=True) for token in SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer = qwen2
    return tokenizer


def encode_files(tokenizer: Tokenizer, texts: dict[str, str], seed: int) -> np.ndarray:
    """Encode all files into one int16 stream, shuffled, an end-of-text token after each."""
    paths = sorted(texts)
    random.Random(seed).shuffle(paths)
    ids: list[int] = []
    for path in paths:
        ids += tokenizer.encode(texts[path], add_special_tokens=False).ids
        ids.append(END_OF_TEXT)
    return np.array(ids, dtype=np.int16)


def choose_prompts(
    tokenizer: Tokenizer, texts: dict[str, str], n_prompts: int, seed: int
) -> list[dict[str, str]]:
    """Choose pieces of held-out files: each starts at a `def` or `class`, 30-60 tokens long.

    A piece ends where a line ends, so that it reads (and encodes) the same alone. At most one
    piece comes from a file while files last.
    """
    rng = random.Random(seed)
    by_file = {path: _pieces(tokenizer, text) for path, text in sorted(texts.items())}
    chosen: list[dict[str, str]] = []
    while len(chosen) < n_prompts and any(by_file.values()):
        paths = [path for path, pieces in by_file.items() if pieces]
        rng.shuffle(paths)
        for path in paths[: n_prompts - len(chosen)]:
            piece = by_file[path].pop(rng.randrange(len(by_file[path])))
            chosen.append({"file": path, "text": piece})
    return chosen


def _pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    lines = text.splitlines(keepends=True)
    pieces = []
    for start, line in enumerate(lines):
        if not line.startswith(("def ", "class ", "    def ")):
            continue
        piece = ""
        for following in lines[start : start + 8]:
            piece += following
            n_tokens = len(tokenizer.encode(piece, add_special_tokens=False).ids)
            if 30 <= n_tokens <= 60 and following.strip():
                pieces.append(piece)
                break
    return pieces
