"""llama.cpp through ``llama-cpp-python``'s C face, doing exactly what ours does."""

from __future__ import annotations

from pathlib import Path

import llama_cpp
import numpy as np

__all__ = ["Peer"]

DEPTH = 128


class Peer:
    """One sequence at a fixed depth: decode n rows with all logits, remove them again."""

    def __init__(self, path: Path, threads: int) -> None:
        llama_cpp.llama_backend_init()
        options = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch = 512, 512, 512
        settings.n_threads = settings.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, settings)
        if not self.context:
            raise RuntimeError("llama.cpp made no context")
        self.batch = llama_cpp.llama_batch_init(512, 0, 1)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self._decode(np.arange(DEPTH) + 3, 0)

    def _decode(self, tokens: np.ndarray, pos: int) -> None:
        self.batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens.tolist()):
            self.batch.token[i], self.batch.pos[i] = token, pos + i
            self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, 0
            self.batch.logits[i] = 1
        if llama_cpp.llama_decode(self.context, self.batch) != 0:
            raise RuntimeError("llama.cpp did not decode")

    def verify(self, n: int) -> None:
        """Run n rows and forget them."""
        self._decode(np.arange(n) + 7, DEPTH)
        for i in range(n):
            row = llama_cpp.llama_get_logits_ith(self.context, i)
            np.ctypeslib.as_array(row, shape=(self.n_vocab,)).sum()
        memory = llama_cpp.llama_get_memory(self.context)
        llama_cpp.llama_memory_seq_rm(memory, 0, DEPTH, -1)
