"""llama.cpp through ``llama-cpp-python``'s C interface, processing exactly what mtpcore does.

On a virtual processor with AMX llama-cpp-python 0.3.36 as built by default (gcc 12.2) ended with a
segmentation fault in ``ggml_backend_amx_mul_mat``; why is not known. Built with ``CFLAGS`` and
``CXXFLAGS`` of ``-mno-amx-tile -mno-amx-int8``, or where AMX is refused to the process, as
``refuse_amx.c`` does, it runs on AVX-512. A build whose AMX works would prefill faster.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

__all__ = ["Peer", "PeerModel", "Setting", "name_of", "quiet_logs"]

Setting = tuple[bool, bool]
"""Weights repacked for the processor, flash attention."""

RECURRENT = llama_cpp.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
KV_TYPES = {"f32": llama_cpp.GGML_TYPE_F32, "f16": llama_cpp.GGML_TYPE_F16}


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _silence(level: int, text: bytes, data: object) -> None:
    """Drop a line of the log."""


def quiet_logs() -> None:
    """Drop what llama.cpp logs."""
    llama_cpp.llama_log_set(_silence, None)


class PeerModel:
    """A file, repacked or as it is; ``mtp``: with the blocks of a drafter."""

    def __init__(self, path: Path, repack: bool, *, mtp: bool = False) -> None:
        quiet_logs()
        llama_cpp.llama_backend_init()
        options = llama_cpp.llama_model_default_params()
        options.use_extra_bufts, options.load_mtp = repack, mtp
        self.repack = repack
        self.handle = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
        if not self.handle:
            raise RuntimeError(f"llama.cpp does not load {path}")
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.handle))
        self.is_hybrid = llama_cpp.llama_model_is_hybrid(self.handle)


class Peer:
    """One sequence of a model, with one of the settings; see ``Engine``.

    ``snapshots`` is how many rows recurrent layers can take back by themselves; ``head_of`` makes
    it the context of the model's MTP head, beside that of the target.
    """

    def __init__(
        self,
        model: PeerModel,
        flash: bool,
        n_ctx: int,
        threads: int,
        kv_dtype: str = "f16",
        snapshots: int = 0,
        head_of: Peer | None = None,
    ) -> None:
        settings: Any = llama_cpp.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch = n_ctx, 512, 512
        settings.n_threads = settings.n_threads_batch = threads
        settings.flash_attn_type = int(flash)
        settings.type_k = settings.type_v = KV_TYPES[kv_dtype]
        settings.n_rs_seq = snapshots
        if head_of is not None:
            settings.ctx_type = llama_cpp.LLAMA_CONTEXT_TYPE_MTP
            settings.ctx_other = head_of.context
        self.model, self.flash = model, flash
        self.name = name_of((model.repack, flash))
        self.context: Any = llama_cpp.llama_init_from_model(model.handle, settings)
        if not self.context:
            raise RuntimeError("llama.cpp made no context")
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.batch = llama_cpp.llama_batch_init(512, 0, 1)
        self.depth, self.filled = 0, 0
        self._states: ctypes.Array[ctypes.c_uint8] | None = None

    def process(self, tokens: Sequence[int], every: bool = False) -> np.ndarray:
        """Run tokens after those there are; return logits f32[n, n_vocab] of all, or the last."""
        n = len(tokens)
        self._write(tokens, self.depth, every)
        if llama_cpp.llama_decode(self.context, self.batch) != 0:
            raise RuntimeError("llama.cpp did not decode")
        self.depth += n
        first = llama_cpp.llama_get_logits_ith(self.context, 0 if every else n - 1)
        return np.ctypeslib.as_array(first, shape=(n if every else 1, self.model.n_vocab))

    def encode(self, tokens: Sequence[int]) -> None:
        """Let the model's encoder read a prompt of up to 512 tokens."""
        self._write(tokens, 0, True)
        if llama_cpp.llama_encode(self.context, self.batch) != 0:
            raise RuntimeError("llama.cpp did not encode")

    def _write(self, tokens: Sequence[int], begin: int, every: bool) -> None:
        """Write a batch from position ``begin`` on; all tokens have logits, or the last."""
        batch, n = self.batch, len(tokens)
        batch.n_tokens = n
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, begin + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = every or i == n - 1

    def fill(self, tokens: Sequence[int]) -> None:
        """Hold these tokens and no others."""
        self.rewind(0)
        self.process(tokens)
        self._keep()

    def copy(self, other: Peer) -> None:
        """Hold the same tokens as another; only for contexts with the same flash setting."""
        size = llama_cpp.llama_state_seq_get_size(other.context, 0)
        state = (ctypes.c_uint8 * size)()
        llama_cpp.llama_state_seq_get_data(other.context, state, size, 0)
        if not llama_cpp.llama_state_seq_set_data(self.context, state, size, 0):
            raise RuntimeError("llama.cpp did not take a state")
        self.depth = other.depth
        self._keep()

    def _keep(self) -> None:
        """Copy what recurrent layers hold: they cannot go back by themselves."""
        self.filled = self.depth
        if self.model.is_hybrid:
            size = llama_cpp.llama_state_seq_get_size_ext(self.context, 0, RECURRENT)
            self._states = (ctypes.c_uint8 * size)()
            llama_cpp.llama_state_seq_get_data_ext(self.context, self._states, size, 0, RECURRENT)

    def rewind(self, depth: int) -> None:
        """Forget what lies after ``depth`` tokens: none, or those that were filled in."""
        if depth and (kept := self._states) is not None:
            llama_cpp.llama_state_seq_set_data_ext(self.context, kept, len(kept), 0, RECURRENT)
        if not llama_cpp.llama_memory_seq_rm(self.memory, 0, depth, -1):
            raise RuntimeError("llama.cpp did not remove a tail")
        self.depth, self.filled = depth, min(depth, self.filled)

    def close(self) -> None:
        """Free the context."""
        llama_cpp.llama_batch_free(self.batch)
        llama_cpp.llama_free(self.context)
        self.context = None


def name_of(setting: Setting) -> str:
    """Return a setting's short name."""
    repack, flash = setting
    return f"{'repack' if repack else 'no-repack'}, fa {'on' if flash else 'off'}"
