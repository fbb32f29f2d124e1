"""Convert damaged folders and quantise damaged files, each in a process with little memory.

``python -m harness.fuzz_conversion convert|quantize FOLDER BEGIN END`` prints a JSON line for each
seed: how it ended ("ran", "refused: ...", or what went wrong). What comes out must load, its
tokenizer must encode and decode, and it must run.
"""

import contextlib
import json
import logging
import shutil
import sys
from functools import partial
from pathlib import Path

import numpy as np

import mtpcore
from harness import damage, damaged_checkpoints
from harness.confined import WATCHED, confined
from mtpcore.conversion import MIXES, convert, quantize

TEXT = "ab abc\nhello <|end|> \u00e9"
MEMORY = 400 << 20  # bytes that a case may hold beyond four times its files
LONGEST = 20_000_000  # characters of a message: it names every tensor that is missing


def use(path):
    """Load a file, spell a text, and run some tokens."""
    with mtpcore.load_model(path) as model:
        tokenizer = model.tokenizer if model.has_tokenizer else None
        n_vocab = model.hparams.n_vocab
        tokens = [1, 2, 3]
        if tokenizer is not None:
            found = tokenizer.encode(TEXT, parse_special=True)
            assert all(0 <= token < n_vocab for token in found), "a token that the model lacks"
            assert isinstance(tokenizer.decode(found), str)
            tokens = found[:8] or tokens
        if model.file_layout == "mtp-only":
            return
        context = mtpcore.Context(model, n_ctx=64, threads=1)
        tokens = [token for token in tokens if token < n_vocab]
        if tokens:
            out = context.process(mtpcore.Batch.of(tokens, outputs="all"))
            assert out.logits.shape == (len(tokens), n_vocab)


def make(act, source, out, **options):
    """Convert or quantise, and use what comes out; a refusal leaves nothing behind."""
    try:
        act(source, out, **options)
    except mtpcore.MtpcoreError as error:
        said = str(error)
        left = [path.name for path in out.parent.iterdir() if path.name.startswith(out.name)]
        if left or "\0" in said or len(said) > LONGEST:
            raise AssertionError(f"left {left}, {len(said)} characters of message") from error
        raise
    try:
        use(out)
    except mtpcore.MtpcoreError as error:
        raise AssertionError("the file does not run") from error


def one_folder(folder, seed):
    """Return the call that converts a damaged folder."""
    options, _ = damaged_checkpoints.write_damaged(folder / "hf", seed)
    return partial(make, convert, folder / "hf", folder / "out.gguf", **options)


def one_file(folder, seed):
    """Return the call that quantises a damaged file; None where it cannot be written."""
    folder.mkdir()
    with contextlib.suppress(Exception):  # the writer cannot write all that may be found
        damage.write_damaged(folder / "in.gguf", seed)
    if not (folder / "in.gguf").exists():
        return None
    outtype = [*MIXES][seed % len(MIXES)]
    mtp = ("keep", "keep", "only", "drop")[seed // len(MIXES) % 4]
    return partial(
        make, quantize, folder / "in.gguf", folder / "out.gguf", outtype=outtype, mtp=mtp
    )


def main(act, folder, begin, end):
    logging.disable()
    np.seterr(all="ignore")
    case = {"convert": one_folder, "quantize": one_file}[act]
    for seed in range(int(begin), int(end)):
        place = Path(folder) / str(seed)
        call = case(place, seed)
        if call is not None:
            size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
            how, peak = confined(call)
            if peak > 4 * size + MEMORY and not WATCHED:
                how = f"{peak >> 20} MB; {how}"
            print(json.dumps({"seed": seed, "how": how}), flush=True)
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
