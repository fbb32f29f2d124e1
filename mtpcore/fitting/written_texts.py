"""Texts that the model itself writes, from which a head learns what it will have to draft."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore.decoding import Generator
from mtpcore.errors import MtpcoreError
from mtpcore.fitting.pace import time_per_token
from mtpcore.fitting.stored import read_arrays, write_arrays
from mtpcore.runtime.context import Context
from mtpcore.runtime.fingerprint import Fingerprint
from mtpcore.runtime.model import Model
from mtpcore.sampling import Sampling

__all__ = ["Writer"]

I32 = NDArray[np.int32]

_TOGETHER = 16
"""Texts that are written in one batch."""
_OPENING = 24
"""Tokens of a piece of text with which a written one begins."""
_PACED = 16
"""Tokens of each text that are written to find out how long that takes."""
_MARK = "a question"


class Writer:
    """Lets a model write texts at temperature 1, and keeps them in a folder.

    Every other text begins as a piece of a training text does. The others begin where a user's turn
    does in the model's chat template, so that the model writes question and answer (Xu et al.,
    "Magpie", 2024); or with the first token of texts, where it has no template.

    Parameters
    ----------
    model : Model
    pieces : sequence of int32[n]
        Of training texts.
    folder : Path
        Where texts lie that were written before.
    window : int
        Tokens of the longest text.
    seed : int
    threads : int, optional
    """

    def __init__(
        self,
        model: Model,
        pieces: Sequence[I32],
        folder: Path,
        window: int,
        seed: int,
        *,
        threads: int | None = None,
    ) -> None:
        self._context = Context(model, window, n_seq_max=_TOGETHER, threads=threads)
        self._pieces, self._folder, self._seed = pieces, folder, seed
        self._turn = _open_turn(model)
        origin = Fingerprint.of(self._context.runner)
        self._origin = msgspec.json.encode((origin, window, seed))

    def write(self, number: int) -> list[I32]:
        """Return some texts, int32[n_tokens] each, the tokens that end them included.

        Parameters
        ----------
        number : int
            Which; other numbers give other texts.

        Raises
        ------
        ModelFileError
            What an earlier run wrote is damaged, or nothing can be written.
        """
        first = number * _TOGETHER
        openings = [self._open(i) for i in range(first, first + _TOGETHER)]
        key = hashlib.blake2b(self._origin, digest_size=16)
        key.update(msgspec.json.encode((number, openings)))
        path = self._folder / f"written-{key.hexdigest()}.safetensors"
        if path.exists():
            stored = read_arrays(path)
            return np.split(stored["tokens"], stored["begins"][1:-1])
        texts = self._continue(openings, first, self._context.n_ctx)
        begins = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        write_arrays(path, {"tokens": np.concatenate(texts), "begins": begins})
        return texts

    def pace(self) -> float:
        """Return the seconds that it takes to write a token of texts, which are not kept."""
        openings = [self._open(i) for i in range(_TOGETHER)]
        longest = max(map(len, openings)) + _PACED

        def write() -> int:
            return sum(map(len, self._continue(openings, 0, longest)))

        return time_per_token(write)

    def _continue(self, openings: Sequence[list[int]], stream: int, longest: int) -> list[I32]:
        """Go on after openings, up to ``longest`` tokens, each with a stream of its own."""
        generator = Generator(self._context)
        requests = [
            generator.add(
                opening,
                max_tokens=longest - len(opening),
                sampling=Sampling(temperature=1.0, seed=self._seed, stream=stream + i),
            )
            for i, opening in enumerate(openings)
        ]
        while generator.active:
            generator.step()
        return [np.asarray([*one.prompt, *one.tokens], np.int32) for one in requests]

    def _open(self, i: int) -> list[int]:
        if i % 2 and self._turn:
            return self._turn
        opening: list[int] = self._pieces[i // 2 % len(self._pieces)][:_OPENING].tolist()
        return opening


def _open_turn(model: Model) -> list[int]:
    """Return the tokens before a user's first words; else those before a text's."""
    tokenizer, template = model.tokenizer, model.chat_template
    if template is not None:
        try:
            text = template.render([{"role": "user", "content": _MARK}])
            return tokenizer.encode(text.partition(_MARK)[0], False, parse_special=True)
        except MtpcoreError:  # a template that takes no such conversation
            pass
    return tokenizer.encode("")
