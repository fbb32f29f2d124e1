"""Training a head on a teacher's rows: batches, the loss, the steps, and where they go on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from numpy.typing import NDArray

from mtpcore.fitting.optimizer import Parameters, State, begin_state, update
from mtpcore.fitting.pace import time_per_token
from mtpcore.fitting.settings import Settings
from mtpcore.fitting.shape import F32, Shape
from mtpcore.fitting.stored import read_arrays, write_arrays
from mtpcore.fitting.teacher import Shard, output_rows, table_rows
from mtpcore.gguf import Tensor

__all__ = ["Trainer"]

_KEPT_EVERY = 200
"""Steps after which the state is written, so that an interrupted run can go on."""
_LATER = 0.7
"""What a step of a draft counts for, of the one before it."""
_SAMPLE = 400
"""Pieces that are looked at before the first step."""
_WARM_UP = 20
"""Steps in which the rate rises."""


class TrainingBatch(NamedTuple):
    """Pieces of text as a head reads them; place p has row p and token p + 1.

    ``embeddings`` float32[batch, n, width] and ``taps`` float32[batch, n, ...] are what the head
    reads, ``hidden`` float32[batch, n, width] the teacher's row after token p + 1, ``lengths``
    int32[batch] how many places of each piece there are.
    """

    embeddings: F32
    taps: F32
    hidden: F32
    lengths: NDArray[np.int32]


class Trainer:
    """Fits the weights of a shape to a teacher's rows.

    Parameters
    ----------
    target : Model
    shape : Shape
    shards : sequence of Shard
    vocabulary : int64[n]
        Token ids that can be drafted.
    settings : Settings
    weights : mapping, optional
        Those of a head of the same shape, as its file has them; default: the shape's own.
    """

    def __init__(
        self,
        target: Any,
        shape: Shape,
        shards: Sequence[Shard],
        vocabulary: NDArray[np.int64],
        settings: Settings,
        weights: dict[str, F32] | None = None,
    ) -> None:
        self._shape, self._settings = shape, settings
        self._pieces = [(one, i) for one in shards for i in range(len(one.begins) - 1)]
        self._table: Tensor = target.tensors["token_embd.weight"]
        output = output_rows(target, vocabulary)
        self._scale = self._measure_scale()
        if weights is None:
            embeddings = table_rows(self._table, vocabulary)
            self._weights = shape.begin(
                target, embeddings, output, self._sample, settings.seed, settings.depth
            )
        else:
            self._weights = shape.scaled(weights, self._scale)
        self._key = self._name_run(vocabulary)
        draft = partial(shape.draft, depth=settings.depth, target=target)
        loss = partial(_loss, draft, jnp.asarray(output))
        self._step = jax.jit(partial(_step, loss), donate_argnums=(0, 1))

    @property
    def n_steps(self) -> int:
        """Steps of the whole run."""
        return self._settings.epochs * -(-len(self._pieces) // self._settings.batch)

    def run(self, folder: Path, report: Callable[[int, int], None]) -> dict[str, F32]:
        """Take the steps that are left, and return the weights as the head's file has them.

        Parameters
        ----------
        folder : Path
            Where the state of an interrupted run lies, if there was one.
        report : callable
            Told after each step how many tokens have been learned from, and of how many.

        Raises
        ------
        ModelFileError
            The state of an interrupted run is damaged, or cannot be written.
        """
        path = folder / f"training-{self._key}.safetensors"
        begun = {name: jnp.asarray(w) for name, w in self._weights.items()}
        done, weights, state = _read_state(path) or (0, begun, begin_state(begun))
        total = self._settings.epochs * sum(self._length(one) for one in self._pieces)
        n_read = 0
        for step, pieces in enumerate(self._batches()):
            n_read += sum(map(self._length, pieces))
            if step < done:
                continue
            rate = np.float32(self._settings.rate * self._share(step))
            weights, state = self._step(weights, state, self._read(pieces), rate, step + 1)
            report(n_read, total)
            if (step + 1) % _KEPT_EVERY == 0 or step + 1 == self.n_steps:
                _write_state(path, step + 1, weights, state)
        fitted = {name: np.asarray(w) for name, w in weights.items()}
        return self._shape.scaled(fitted, np.float32(1) / self._scale)

    def pace(self) -> float:
        """Return the seconds that it takes to learn from a token once; nothing is learned."""
        weights = {name: jnp.asarray(w) for name, w in self._weights.items()}
        state = begin_state(weights)
        pieces = next(self._batches())

        def learn() -> int:
            nonlocal weights, state
            still = np.float32(0)
            weights, state = self._step(weights, state, self._read(pieces), still, 1)
            jax.block_until_ready(weights)
            return sum(map(self._length, pieces))

        return time_per_token(learn)

    def _share(self, step: int) -> float:
        return min(1.0, (step + 1) / _WARM_UP) * (1 - step / self.n_steps)

    def _length(self, piece: tuple[Shard, int]) -> int:
        shard, i = piece
        return int(shard.begins[i + 1] - shard.begins[i])

    def _batches(self) -> Iterator[list[tuple[Shard, int]]]:
        """Yield the pieces of each step; every epoch has an order of its own."""
        size = self._settings.batch
        for epoch in range(self._settings.epochs):
            order = np.random.default_rng((self._settings.seed, epoch)).permutation(
                len(self._pieces)
            )
            for begin in range(0, len(order), size):
                yield [self._pieces[i] for i in order[begin : begin + size]]

    def _read(self, pieces: Sequence[tuple[Shard, int]]) -> TrainingBatch:
        rows = [shard.read(i) for shard, i in pieces]
        shape = self._settings.batch, self._settings.window
        batch = TrainingBatch(
            np.zeros((*shape, self._table.shape[-1]), np.float32),
            np.zeros((*shape, rows[0].taps.shape[1]), np.float32),
            np.zeros((*shape, rows[0].hidden.shape[1]), np.float32),
            np.zeros(shape[0], np.int32),
        )
        for i, one in enumerate(rows):
            n = len(one.tokens) - 1
            batch.embeddings[i, :n] = table_rows(self._table, one.tokens[1:])
            batch.taps[i, :n] = one.taps[:-1] / self._scale
            batch.hidden[i, :n] = one.hidden[1:]
            batch.lengths[i] = n
        return batch

    def _sample(self) -> Iterator[tuple[F32, F32, F32]]:
        """Yield embeddings, taps and the teacher's next rows of pieces that lie far apart."""
        every = max(len(self._pieces) // _SAMPLE, 1)
        for piece in self._pieces[::every]:
            batch, n = self._read([piece]), self._length(piece) - 1
            yield batch.embeddings[0, :n], batch.taps[0, :n], batch.hidden[0, :n]

    def _measure_scale(self) -> F32:
        """Return the root mean square of each column of the taps."""
        every = max(len(self._pieces) // _SAMPLE, 1)
        taps = (shard.read(i).taps.astype(np.float32) for shard, i in self._pieces[::every])
        squares = np.mean([np.mean(np.square(rows), axis=0) for rows in taps], axis=0)
        scale: F32 = np.sqrt(squares + np.float32(1e-12))
        return scale

    def _name_run(self, vocabulary: NDArray[np.int64]) -> str:
        """Return a hash of all that the weights depend on."""
        hashed = hashlib.blake2b(digest_size=16)
        about = self._shape.ARCHITECTURE, self._settings, jax.__version__
        hashed.update(msgspec.json.encode(about))
        hashed.update("\0".join(sorted({shard.path.name for shard, _ in self._pieces})).encode())
        hashed.update(vocabulary.tobytes())
        for name, values in sorted(self._weights.items()):
            hashed.update(name.encode() + values.tobytes())
        return hashed.hexdigest()


def _loss(draft: Any, output: jax.Array, weights: Parameters, batch: TrainingBatch) -> jax.Array:
    """Return the cross-entropy against the teacher's distribution over what can be drafted."""
    wanted = jax.nn.softmax(batch.hidden @ output.T)
    places = jnp.arange(batch.hidden.shape[1])
    total = jnp.float32(0)
    for step, rows in enumerate(draft(weights, batch.embeddings, batch.taps)):
        there = places + step < batch.lengths[:, None]
        logs = jax.nn.log_softmax(rows @ weights["output.weight"].T)
        losses = -jnp.sum(jnp.roll(wanted, -step, axis=1) * logs, axis=-1)
        total += _LATER**step * jnp.sum(losses * there) / jnp.maximum(there.sum(), 1)
    return total


def _step(
    loss: Any,
    weights: Parameters,
    state: State,
    batch: TrainingBatch,
    rate: jax.Array,
    step: jax.Array,
) -> tuple[Parameters, State]:
    return update(weights, state, jax.grad(loss)(weights, batch), rate, step)


def _write_state(path: Path, done: int, weights: Parameters, state: State) -> None:
    parts = {"weight": weights, **state}
    arrays = {
        f"{part}.{name}": np.asarray(values)
        for part, named in parts.items()
        for name, values in named.items()
    }
    write_arrays(path, {"done": np.array(done), **arrays})


def _read_state(path: Path) -> tuple[int, Parameters, State] | None:
    if not path.exists():
        return None
    arrays = read_arrays(path)
    done = int(arrays.pop("done"))
    parts: dict[str, Parameters] = {}
    for key, values in arrays.items():
        part, _, name = key.partition(".")
        parts.setdefault(part, {})[name] = jnp.asarray(values)
    return done, parts.pop("weight"), parts
