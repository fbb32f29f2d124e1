"""Frames: texts of a model that writes codes in place of tokens, a frame of them at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from mtpcore.acts.guards import act
from mtpcore.boundary.arguments import Length, read
from mtpcore.boundary.arrays import integers
from mtpcore.boundary.copies import Uncopied
from mtpcore.cross import Cross, link
from mtpcore.decoding.request import FinishReason
from mtpcore.decoding.request_iterator import RequestIterator
from mtpcore.decoding.request_queue import RequestQueue
from mtpcore.errors import BatchError, CapacityError, LinkError
from mtpcore.runtime.batch import Batch
from mtpcore.runtime.context import Context
from mtpcore.runtime.prompt import Prompt
from mtpcore.sampling import Sampling, check_no_grammar

__all__ = ["FrameRequest", "Frames"]

I32 = NDArray[np.int32]


class FrameRequest(Uncopied):
    """A prompt, its settings, and the frames that were written so far.

    ``frames`` are int32[count] each, without the one that ended the text. ``finish_reason``:
    ``end`` (a frame that ends), ``length`` (``max_frames`` or the context's end), ``no_token`` (no
    code was left to choose), ``cancelled``, or None while it runs.

    Parameters
    ----------
    prompt : Prompt
    sampling, depth_sampling : Sampling
        Of first codes, and of the codes after them.
    max_frames : int
    beside : array_like of int
        Tokens that are read with the frames, one each.

    Raises
    ------
    BatchError, SamplingError
        Invalid settings.
    """

    _because = "its Frames work on it"
    _instead = "add the prompt again, or copy what you need of it: request.frames"

    def __init__(
        self,
        prompt: Prompt,
        sampling: Sampling,
        depth_sampling: Sampling,
        max_frames: int,
        beside: ArrayLike = (),
    ) -> None:
        self.prompt = prompt
        self.beside = integers(beside, "tokens beside frames")
        if self.beside.ndim != 1:
            raise BatchError("tokens beside frames are a list of ids", got=self.beside.shape)
        self.sampling, self.depth_sampling = sampling, depth_sampling
        self.max_frames: int = read(max_frames, Length, "max_frames is a number of frames")
        self.frames: list[I32] = []
        self.finish_reason: FinishReason | None = None
        self.seq: int | None = None
        self.is_queued = self.resting = self.is_left = False

    def __repr__(self) -> str:
        return (
            f"FrameRequest({len(self.prompt)} prompt rows, {len(self.frames)} frames, "
            f"finish_reason={self.finish_reason!r})"
        )

    @property
    def done(self) -> bool:
        """Whether the request has finished."""
        return self.finish_reason is not None

    def token_beside(self, n: int) -> int:
        """Return the token that is read with frame ``n``; -1 where there is none left."""
        return int(self.beside[n]) if n < len(self.beside) else -1

    def take(self, n: int, frame: I32 | None, reason: FinishReason | None) -> None:
        """Apply a round: the ``frame`` after ``n`` others, and the ``reason`` of an end."""
        self.frames[n:] = [] if frame is None else [frame]
        self.finish_reason = reason


class _FrameProgress(msgspec.Struct, frozen=True):
    """The frame that a round brought a request after ``n`` others, or its end."""

    n: int
    frame: I32 | None
    reason: FinishReason | None


class Frames(RequestQueue[FrameRequest]):
    """Writes frames of codes, for one or many requests.

    The model reads a prompt, or the frame before; its logits choose the first code of the next
    frame, and the graph after it all others, in one call (``Cross.frame``). ``Model.codebooks``
    says what a frame is.

    Only one call runs at a time on a Cross with all that writes on it: a second one is a BusyError.
    A request's frames do not depend on the others.

    Parameters
    ----------
    source : Cross or Context
        Where to run; a Context is linked first. Only empty sequences are used.
    sampling : Sampling, optional
        Default settings; default: temperature 1 with a seed drawn and recorded.
    depth_sampling : Sampling, optional
        Default settings of the codes after the first. Biases and penalties hold for first codes
        alone. Default: those of the request's ``sampling``.

    Raises
    ------
    LinkError
        ``source`` is no Cross or context of a model that writes codes, or lacks the context that
        chooses them.
    SamplingError
        Invalid settings.
    """

    def __init__(
        self,
        source: Cross | Context,
        *,
        sampling: Sampling | None = None,
        depth_sampling: Sampling | None = None,
    ) -> None:
        self.sampling = check_no_grammar(Sampling() if sampling is None else sampling)
        self.depth_sampling = None if depth_sampling is None else check_no_grammar(depth_sampling)
        if isinstance(source, Context):
            source = source.owner if isinstance(source.owner, Cross) else link(source)
        if not isinstance(source, Cross) or source.speculation.codes is None:
            raise LinkError(
                "frames are written on a Cross of a model that writes codes",
                got=repr(source)[:80],
                fix="make one: Frames(link(Context(model))), of a model with codebooks",
            )
        super().__init__(source, FrameRequest)
        self.codebooks = source.speculation.codes.codebooks

    def __repr__(self) -> str:
        return f"Frames({self.cross!r}, {self._describe()})"

    @act
    def add(
        self,
        prompt: Prompt | ArrayLike,
        *,
        max_frames: int = 256,
        beside: ArrayLike = (),
        sampling: Sampling | None = None,
        depth_sampling: Sampling | None = None,
    ) -> FrameRequest:
        """Queue a request; ``step`` works on it.

        Parameters
        ----------
        prompt : Prompt or array_like of int, shape (n,)
            Tokens, frames of ``Codes``, and whatever else the model reads; or token ids.
        max_frames : int
            The longest text.
        beside : array_like of int, DLPack, shape (n,)
            Tokens for models that read text while they speak: each frame that was written is read
            together with the next one of these.
        sampling, depth_sampling : Sampling, optional
            This request's; default: those of these Frames.

        Raises
        ------
        BatchError, CapacityError, SamplingError
            A prompt that cannot be read or is longer than the context, or invalid settings.
        """
        request = self._request(prompt, max_frames, beside, sampling, depth_sampling)
        self._queue(request)
        return request

    def _request(
        self,
        prompt: Prompt | ArrayLike,
        max_frames: int,
        beside: ArrayLike,
        sampling: Sampling | None,
        depth_sampling: Sampling | None,
    ) -> FrameRequest:
        text = prompt if isinstance(prompt, Prompt) else Prompt(prompt)
        n_ctx = self.cross.llm.n_ctx
        if len(text) > n_ctx:
            raise CapacityError(
                "the prompt is longer than the context",
                wanted=n_ctx,
                got=len(text),
                fix="make n_ctx= (-c) larger",
            )
        target = self.cross.speculation.target
        try:
            target.check_rows(text.batch(n_axes=target.program.n_axes))
        except BatchError as error:
            raise error.at("prompt") from None
        own = self.sampling if sampling is None else check_no_grammar(sampling)
        inner = self.depth_sampling if depth_sampling is None else check_no_grammar(depth_sampling)
        request = FrameRequest(text, own, inner or own, max_frames, beside)
        n_vocab = self.cross.llm.model.hparams.n_vocab
        bad = np.flatnonzero((request.beside < 0) | (request.beside >= n_vocab))
        if len(bad):
            raise BatchError(
                "no such token",
                where=f"beside frame {bad[0]}",
                wanted=f"0..{n_vocab - 1}",
                got=int(request.beside[bad[0]]),
            )
        return request

    def _queue(self, request: FrameRequest) -> None:
        if request.max_frames == 0 and not request.done:
            request.finish_reason = "length"
        super()._queue(request)

    def _cancellation(self, request: FrameRequest) -> Callable[[], None]:
        return partial(
            self._publish, [(request, _FrameProgress(len(request.frames), None, "cancelled"))]
        )

    def generate(
        self,
        prompt: Prompt | ArrayLike,
        *,
        max_frames: int = 256,
        beside: ArrayLike = (),
        sampling: Sampling | None = None,
        depth_sampling: Sampling | None = None,
    ) -> Iterator[I32]:
        """Return an iterator over the frames of one request; its sequence is freed afterwards.

        After an interrupt ``next()`` goes on: no frame is lost or given twice.

        Parameters
        ----------
        prompt, max_frames, beside, sampling, depth_sampling
            As in ``add``.

        Yields
        ------
        int32[count]
            One code of each codebook.
        """
        request = self._request(prompt, max_frames, beside, sampling, depth_sampling)
        return RequestIterator(self, request, request.frames)

    @act
    def step(self) -> None:
        """Write one frame of each running request, or of as many as there are sequences for.

        A round happens as a whole or not at all, and may be called again in any case.

        Raises
        ------
        CapacityError
            Requests wait, and further rounds will not free a sequence for them.
        """
        self._admit()
        running = self._running()
        if not running:
            self._check_waiting()
            return
        with self.cross.transaction(running) as transaction:
            progress = self._run(running)
            transaction.commit(partial(self._publish, progress))

    def _run(
        self, running: Mapping[int, FrameRequest]
    ) -> list[tuple[FrameRequest, _FrameProgress]]:
        """Read what waits, and choose the next frames."""
        speculation = self.cross.speculation
        target, codes = speculation.target, speculation.codes
        assert codes is not None
        going = {seq: request for seq, request in running.items() if request.frames}
        for seq, request in running.items():
            if seq not in going:
                target.process(request.prompt.batch(seq=seq, n_axes=target.program.n_axes))
        if going:
            self._read(going)
        frames = codes.choose(
            speculation.states,
            list(running),
            {seq: request.sampling for seq, request in running.items()},
            {seq: request.depth_sampling for seq, request in running.items()},
            {
                seq: np.array([frame[0] for frame in request.frames], np.int32)
                for seq, request in running.items()
            },
        )
        return [(running[seq], self._advance(running[seq], frame)) for seq, frame in frames.items()]

    def _read(self, going: Mapping[int, FrameRequest]) -> None:
        """Let the model read the newest frame of each, in one batch, and the token beside it."""
        target = self.cross.speculation.target
        target.process(
            Batch(
                [request.token_beside(len(request.frames) - 1) for request in going.values()],
                codes=np.stack([request.frames[-1] for request in going.values()]),
                seq=list(going),
                pos=[target.lengths[seq] for seq in going],
                outputs="all",
            )
        )

    def _advance(self, request: FrameRequest, frame: I32 | None) -> _FrameProgress:
        """Return where a frame brings a request, or its end; nothing of it changes."""
        n, codebooks = len(request.frames), self.codebooks
        if frame is None:
            return _FrameProgress(n, None, "no_token")
        if codebooks.end is not None and (frame[: codebooks.n_end] == codebooks.end).all():
            return _FrameProgress(n, None, "end")
        is_full = len(request.prompt) + n >= self.cross.llm.n_ctx
        reason: FinishReason | None = "length" if is_full or n + 1 == request.max_frames else None
        return _FrameProgress(n, frame, reason)

    def _publish(self, progress: list[tuple[FrameRequest, _FrameProgress]]) -> None:
        """Give requests what a round brought, and free the sequences of those that end.

        Calling it twice is calling it once.
        """
        for request, now in progress:
            request.take(now.n, now.frame, now.reason)
            if not request.done:
                continue
            seq = self.cross.owners.find(request)
            if seq is not None:
                self.cross.speculation.remove(seq)
                self.cross.owners.release(seq)
            request.seq = None
        self._requests = [request for request in self._requests if not request.done]

    def _claim(self, request: FrameRequest) -> int | None:
        """Claim an empty sequence for a request; None where there is none."""
        owners, lengths = self.cross.owners, self.cross.speculation.target.lengths
        seq = owners.find(request)
        if seq is not None:  # an interrupt cut this off
            return seq
        seq = next((seq for seq in owners.free() if not lengths[seq]), None)
        if seq is not None:
            owners.claim(seq, request)
        return seq
