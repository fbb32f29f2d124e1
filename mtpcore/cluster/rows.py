"""Texts of rows: what an actor of Ray Data does with a batch of them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mtpcore.errors import BatchError, CapacityError, MtpcoreError, spell
from mtpcore.gguf.renderer import RefusalError
from mtpcore.lm import LM, Completion

__all__ = ["RowText", "RowTexts", "seed_of"]


def seed_of(seed: int, key: object) -> int:
    """Return the seed of a row: it follows from that of the job and the row's key alone."""
    raw = f"{seed}:{type(key).__name__[:3]}:{key}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little") >> 1


class RowText(NamedTuple):
    """What a row gets: the text, why it ended, its tokens; or why there is none."""

    text: str | None
    finish_reason: str | None
    n_tokens: int
    error: str | None


def _plain(value: Any) -> Any:
    """Return a value of an array as Python has it."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _is_list_of(given: Any, kind: type) -> bool:
    return isinstance(given, list) and bool(given) and all(isinstance(one, kind) for one in given)


class RowTexts:
    """Writes a text for each row: a class for ``map_batches`` of Ray Data.

    Each actor has an LM of its own, and writes the texts of a batch together. A row's text is that
    of a call for it alone with the seed ``seed_of(seed, key)``: it does not depend on the batch.

    Parameters
    ----------
    model : str
        A GGUF file under this path on every node, or the name of a model in the package.
    key : str
        The column that tells rows apart.
    prompt : str
        The column of prompts: texts, tokens, or messages of a conversation.
    seed : int
    lm : mapping
        Further arguments of ``LM``.
    options : mapping
        Those of ``LM.generate``, or of ``LM.chat`` for conversations, for all rows.

    Examples
    --------
    >>> import numpy as np
    >>> write = RowTexts("demo", options={"max_tokens": 4})
    >>> rows = write({"id": np.array([7]), "prompt": np.array(["x = "])})
    >>> rows["n_tokens"].tolist()
    [4]
    """

    def __init__(
        self,
        model: str,
        *,
        key: str = "id",
        prompt: str = "prompt",
        seed: int = 0,
        lm: Mapping[str, Any] = {},
        options: Mapping[str, Any] = {},
    ) -> None:
        for name in ("seed", "sampling"):
            if name in options:
                raise BatchError(f"{name} is no option of rows", fix="each has its own: seed=...")
        self._lm = LM(model, **lm)
        self._key, self._prompt, self._seed, self._options = key, prompt, seed, dict(options)

    def __call__(self, rows: dict[str, Any]) -> dict[str, Any]:
        """Return rows with a text each.

        Parameters
        ----------
        rows : dict of str to array
            Columns of a batch, those of keys and prompts among them.

        Returns
        -------
        dict of str to array
            The columns of the batch, and ``text``, ``finish_reason``, ``n_tokens`` and ``error``.
            A row whose prompt cannot be read has no text (None), and says why in ``error``.

        Raises
        ------
        BatchError
            A column is missing.
        MtpcoreError
            The texts cannot be written, whatever the row.
        """
        for name in (self._key, self._prompt):
            if name not in rows:
                raise BatchError(
                    "rows have no such column", wanted=name, got=", ".join(map(str, rows))
                )
        keys, prompts = ([_plain(one) for one in rows[n]] for n in (self._key, self._prompt))
        found = self.write(keys, prompts)
        columns = {name: [getattr(one, name) for one in found] for name in RowText._fields}
        counts = {"n_tokens": np.array(columns.pop("n_tokens"), np.int64)}
        return {**rows, **{n: np.array(one, object) for n, one in columns.items()}, **counts}

    def write(self, keys: Sequence[object], prompts: Sequence[object]) -> list[RowText]:
        """Return the texts of rows, by their keys and prompts; raises as a call."""
        found = asyncio.run(self._write_all(keys, prompts))
        return [
            RowText(one.text, one.finish_reason, len(one.tokens), None)
            if isinstance(one, Completion)
            else RowText(None, None, 0, str(one))
            for one in found
        ]

    async def _write_all(
        self, keys: Sequence[object], prompts: Sequence[object]
    ) -> list[Completion | MtpcoreError]:
        return await asyncio.gather(*map(self._write_one, keys, prompts))

    async def _write_one(self, key: object, prompt: Any) -> Completion | MtpcoreError:
        options = self._options | {"seed": seed_of(self._seed, key)}
        found: Completion
        try:
            if isinstance(prompt, str) or _is_list_of(prompt, int):
                found = await self._lm.agenerate(prompt, **options)
                return found
            if _is_list_of(prompt, Mapping):
                found = await self._lm.achat(prompt, **options)
                return found
        except (BatchError, CapacityError, RefusalError) as error:  # the prompt's fault
            return error
        return BatchError(
            "a prompt is a text, tokens, or messages", where=f"row {key!r}", got=spell(prompt)
        )
