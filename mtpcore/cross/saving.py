"""Saved states of a Cross: every role's memory, the rows that wait on links, and the text."""

from __future__ import annotations

from itertools import chain
from typing import Annotated

import msgspec
import numpy as np

from mtpcore.cross.sequence import SequenceState
from mtpcore.cross.speculation import Speculation
from mtpcore.errors import StateError
from mtpcore.runtime.saving import SavedState, Sections, dump_graph, dump_origin, load_graph
from mtpcore.sampling import Sampling

__all__ = ["dump_cross", "load_cross"]

_Natural = Annotated[int, msgspec.Meta(ge=0)]
_TEXT = "text"


class TextRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is saved of a sequence's text; see ``SequenceState``.

    ``history`` is int32[n], ``early`` int32[n_early], ``last_logits`` float32[n_vocab] or empty.
    """

    history: bytes
    n_known: _Natural
    n_prompt: _Natural
    pending: _Natural | None
    stream: _Natural | None
    sampling: Sampling | None
    last_logits: bytes
    early: bytes
    early_end: _Natural


def dump_cross(speculation: Speculation, seq: int) -> Sections:
    """Yield the sections of a sequence in every role; drafters are settled."""
    runners = speculation.runners
    return chain(
        dump_origin("Cross", runners),
        *(dump_graph(role, runner, seq) for role, runner in runners.items()),
        ((f"rows for {box.name}", box.dump(seq)) for box in speculation.links.boxes),
        [(_TEXT, [msgspec.msgpack.encode(_dump_text(speculation.states[seq]))])],
    )


def _dump_text(state: SequenceState) -> TextRecord:
    logits = state.last_logits
    return TextRecord(
        history=state.history[: state.n].astype("<i4").tobytes(),
        n_known=state.n_known,
        n_prompt=state.n_prompt,
        pending=state.pending,
        stream=state.stream,
        sampling=state.sampling,
        last_logits=b"" if logits is None else np.asarray(logits, "<f4").tobytes(),
        early=state.early.astype("<i4").tobytes(),
        early_end=state.early_end,
    )


def load_cross(speculation: Speculation, seq: int, state: SavedState) -> Sampling | None:
    """Let an empty sequence hold what ``dump_cross`` gave; return its settings.

    Raises
    ------
    StateError
        Sections that are missing, or that are something else.
    """
    state.check_origin("Cross", speculation.runners)
    for role, runner in speculation.runners.items():
        load_graph(role, runner, seq, state)
    for box in speculation.links.boxes:
        with state.section(f"rows for {box.name}") as data:
            box.load(seq, data, speculation.target.n_ctx)
    record = state.decode(_TEXT, TextRecord)
    try:
        _load_text(speculation, seq, record)
    except StateError as error:
        raise error.at(_TEXT) from error
    state.finish()
    return record.sampling


def _load_text(speculation: Speculation, seq: int, record: TextRecord) -> None:
    state, target = speculation.states[seq], speculation.target
    n, n_vocab = target.lengths[seq], target.model.hparams.n_vocab
    if len(record.history) != 4 * n:
        raise StateError("tokens of another text", wanted=4 * n, got=len(record.history))
    history = np.frombuffer(record.history, "<i4")
    known = history[: record.n_known]
    if len(record.early) % 4:
        raise StateError("no tokens", where="early")
    early = np.frombuffer(record.early, "<i4").astype(np.int32)
    is_text = ((history >= -1) & (history < n_vocab)).all() and (known >= 0).all()
    is_text = is_text and ((early >= 0) & (early < n_vocab)).all()
    pending, stream = record.pending, record.stream
    if (
        not is_text
        or not (max(record.n_known, record.n_prompt, record.early_end) <= n)
        or (pending is not None and pending >= n_vocab)
        or (stream is not None and stream >= 1 << 64)
    ):
        raise StateError("no tokens of the model, or more than there are")
    n_bytes = 0 if pending is not None else len(record.last_logits)
    n_logits = int(target.program.shape("logits")[1]) if n_bytes else 0
    if len(record.last_logits) != n_bytes or n_bytes != 4 * n_logits:
        raise StateError("no logits of the model", wanted=4 * n_logits, got=len(record.last_logits))
    for role in speculation.followers():
        length = speculation.runners[role].lengths[seq]
        if length > n:
            raise StateError(
                "a drafter is ahead of the text", where=f"role {role}", wanted=n, got=length
            )
    state.clear()
    state.history[:n] = history
    state.n, state.n_known, state.n_prompt = n, record.n_known, record.n_prompt
    state.early, state.early_end = early, record.early_end
    if record.last_logits:
        state.last_logits = np.frombuffer(record.last_logits, "<f4").astype(np.float32)
    if pending is not None:
        state.set_pending(pending)
    state.set_stream(stream)
    state.sampling = record.sampling
