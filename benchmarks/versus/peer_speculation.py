"""What a round of llama.cpp's ``draft-mtp`` costs: three drafts of an MTP head, and their pass.

Its programs choose tokens by themselves, and with random weights no draft would be accepted. So the
steps of ``common_speculative_impl_draft_mtp`` are taken here, on a text that is known, and the
acceptance is simulated as ours is. What samples tokens and copies hidden rows on the host, which is
little, is left out of llama.cpp's time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from versus.peer import Peer, PeerModel, Setting, name_of

__all__ = ["PeerRounds", "PeerWriter"]

ACCEPTED = (2, 2, 2, 2, 1)
"""Of three drafts, round by round: 2.8 tokens a round."""

_SET_NEXTN = "_Z26llama_set_embeddings_nextnP13llama_contextbb"
"""``llama_set_embeddings_nextn``, exported for llama.cpp's own programs, as C++."""
_GET_NEXTN = "_Z26llama_get_embeddings_nextnP13llama_context"


class PeerRounds:
    """A target that can take back its newest rows, and its MTP head, with a text of one sequence.

    Raises
    ------
    AttributeError
        A build that does not export what llama.cpp's own programs use.
    """

    def __init__(
        self, model: PeerModel, flash: bool, n_ctx: int, threads: int, n_draft: int
    ) -> None:
        library = llama_cpp.llama_cpp._lib
        self._set_nextn, self._get_nextn = library[_SET_NEXTN], library[_GET_NEXTN]
        self._set_nextn.argtypes = [ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool]
        self._set_nextn.restype = None
        self._get_nextn.argtypes = [ctypes.c_void_p]
        self._get_nextn.restype = ctypes.POINTER(ctypes.c_float)
        self.n_draft = n_draft
        self.width = llama_cpp.llama_model_n_embd(model.handle)
        self.target = Peer(model, flash, n_ctx, threads, snapshots=n_draft)
        self.head = Peer(model, flash, n_ctx, threads, head_of=self.target)
        self._set_nextn(self.target.context, True, False)
        self._set_nextn(self.head.context, True, True)
        self._batch = llama_cpp.llama_batch_ext_init(self.head.context)
        self._pending = self._verified = np.zeros((1, self.width), np.float32)

    def fill(self, text: Sequence[int]) -> None:
        """Let both hold these tokens and no others."""
        self.target.rewind(0)
        self.head.rewind(0)
        self.target.process(text)
        self._read(text, self._rows(self.target, len(text)))

    def round(self, text: Sequence[int], n_accepted: int) -> None:
        """Draft after the text there is, verify ``text`` of 1 + drafts, keep 1 + ``n_accepted``.

        Drafts are those of ``text``, whatever the head chooses.
        """
        begin, hidden = self.target.depth, self._pending
        for step, token in enumerate(text[: self.n_draft]):
            self._process_head([token], hidden, begin + step, outputs=True)
            hidden = self._rows(self.head, 1)
        self.head.rewind(begin)
        self.target.process(text, every=True)
        self._read(text, self._rows(self.target, len(text)))
        self.target.rewind(begin + 1 + n_accepted)
        self.head.rewind(begin + 1 + n_accepted)
        self._pending = self._verified[n_accepted : n_accepted + 1]

    def _rows(self, peer: Peer, n: int) -> np.ndarray:
        """Return the hidden rows f32[n, width] of a context's newest batch."""
        rows = self._get_nextn(peer.context)
        return np.ctypeslib.as_array(rows, shape=(n, self.width)).copy()

    def _read(self, tokens: Sequence[int], rows: np.ndarray) -> None:
        """Let the head read tokens, each with the hidden row before it."""
        first = self._pending if self.head.depth else np.zeros_like(rows[:1])
        before = np.concatenate([first, rows[:-1]])
        self._process_head(tokens, before, self.head.depth, outputs=False)
        self._verified, self._pending = rows, rows[-1:]

    def _process_head(
        self, tokens: Sequence[int], rows: np.ndarray, begin: int, *, outputs: bool
    ) -> None:
        batch, rows = self._batch, np.ascontiguousarray(rows)
        llama_cpp.llama_batch_ext_clear(batch)
        at: Any = ctypes.POINTER(ctypes.c_float)
        for i, token in enumerate(tokens):
            index = llama_cpp.llama_batch_ext_add_token(batch, 0, token)
            place = ctypes.c_int32(begin + i)
            llama_cpp.llama_batch_ext_set_pos(batch, index, ctypes.byref(place))
            row = llama_cpp.llama_embd(rows[i].ctypes.data_as(at), 1, self.width)
            llama_cpp.llama_batch_ext_set_embd_token(batch, index, row)
            llama_cpp.llama_batch_ext_set_output_logits(batch, index, outputs)
        if llama_cpp.llama_process(self.head.context, llama_cpp.LLAMA_PROCESS_TYPE_DECODE, batch):
            raise RuntimeError("llama.cpp's head did not decode")
        self.head.depth = begin + len(tokens)

    def write(self, text: Sequence[int], n_rounds: int) -> None:
        """Write on in a text, for so many rounds."""
        for n in islice(cycle(ACCEPTED), n_rounds):
            at = self.target.depth
            self.round(text[at : at + 1 + self.n_draft], n)

    def close(self) -> None:
        """Free both contexts."""
        llama_cpp.llama_batch_ext_free(self._batch)
        self.head.close()
        self.target.close()


class PeerWriter:
    """llama.cpp with one of its settings: a text with drafts, and the same without."""

    def __init__(
        self, path: Path, text: Sequence[int], depth: int, threads: int, setting: Setting
    ) -> None:
        repack, flash = setting
        self.name, self.text = name_of(setting), text
        model = PeerModel(path, repack, mtp=True)
        self.drafted = PeerRounds(model, flash, len(text), threads, n_draft=3)
        self.plain = Peer(model, flash, len(text), threads)
        self.drafted.fill(text[:depth])
        self.plain.process(text[:depth])

    def draft(self, n_rounds: int) -> None:
        """Write on for so many rounds."""
        self.drafted.write(self.text, n_rounds)

    def decode(self, n_tokens: int) -> None:
        """Write on for so many tokens."""
        at = self.plain.depth
        for token in self.text[at : at + n_tokens]:
            self.plain.process([token])

    def close(self) -> None:
        """Free all contexts."""
        self.drafted.close()
        self.plain.close()
