"""LM: a model that turns strings into strings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import Annotated, Any, Literal, TypeVar, Unpack, overload

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from mtpcore.acts.closing import Closing
from mtpcore.backends.base import Backend
from mtpcore.boundary.arguments import Flag, read
from mtpcore.boundary.arrays import integers, is_integer
from mtpcore.boundary.copies import Uncopied
from mtpcore.boundary.options import show_options
from mtpcore.cross import Cross, DrafterLike
from mtpcore.decoding import Generator, Stats
from mtpcore.decoding.prefix_cache import PrefixCacheSize
from mtpcore.decoding.request import read_draft
from mtpcore.discovery.loading import load_model
from mtpcore.errors import BatchError, CapacityError, MtpcoreError, spell
from mtpcore.gguf import Tokenizer
from mtpcore.gguf.adapter import Adapter, load_adapter
from mtpcore.lm.answer_form import answering, read_choice
from mtpcore.lm.answer_parsing import AnswerParsing
from mtpcore.lm.bar import show_progress
from mtpcore.lm.completion import Completion
from mtpcore.lm.embedding import Embedder, Pooling
from mtpcore.lm.engine import Engine
from mtpcore.lm.jobs import Job
from mtpcore.lm.opening import open_cross
from mtpcore.lm.settings import (
    CHAT_DEFAULTS,
    TEXT_DEFAULTS,
    ChatOptions,
    SamplingOptions,
    TextOptions,
    read_defaults,
    read_options,
    recommend_sampling,
    split_chat_options,
)
from mtpcore.lm.streams import AsyncStream, Stream
from mtpcore.lm.template_options import read_template_options
from mtpcore.runtime.adapters import AdapterChoice, read_named
from mtpcore.runtime.model import Model
from mtpcore.sampling import Sampling

__all__ = ["LM"]

_show_options = show_options(TextOptions, TEXT_DEFAULTS)
_show_chat_options = show_options(ChatOptions, CHAT_DEFAULTS)
_SHOWN = Annotated[bool | None, Meta(description="True, False or None")]
log = logging.getLogger("mtpcore")
_ONE = str, bytes, Mapping
PromptLike = str | Sequence[int]
MessageLike = Mapping[str, object]
Conversation = str | Sequence[MessageLike]
F32 = NDArray[np.float32]
R = TypeVar("R")


class LM(Closing, Uncopied):
    """A language model: strings in, strings out.

    It owns a model, its drafter and their KV cache. The text of a call depends on the call alone:
    neither drafts nor other texts nor what the KV cache still holds change it.

    All methods may be called from several threads and event loops at once; their texts share rounds
    (continuous batching). After ``os.fork`` parent and child go on with an LM each by itself, if no
    text was being written at that moment; a stream belongs to the process that made it. After
    ``close``, the end of a ``with`` block, every call raises MtpcoreError, streams that are being
    read included.

    Parameters
    ----------
    model : path or Model
        A GGUF file, a model's name as ``load_model`` takes it (``demo``, ``hf:owner/repo``), or
        what ``load_model`` returned.
        A drafter in a file beside it is found as ``load_model`` finds it.
    n_ctx : int, optional
        Tokens that fit, prompt and text together; default: the context length that the model was
        trained with, at most 4096.
    draft : int or "auto"
        Longest draft; 0: no drafts; "auto" measures which length is fastest, 0 included.
    drafter : str, DrafterSpec, Proposer, or several of them
        Which drafter, if several fit; default: the draft model, or the model's best, and with
        ``draft="auto"`` or without a head lookup, which copies from earlier in the text. Of
        several, as ``["lookup", "auto"]``, the first that proposes anything drafts.
    draft_model : path or Model, optional
        A smaller model of the same vocabulary, or a drafter in a file of its own.
    n_seq_max : int
        Texts that are generated at once; further ones wait.
    n_batch : int
        Tokens of prompts that are processed at once.
    kv_dtype : {"f16", "f32", "q8_0"}
        Type of stored keys and values.
    checkpoint_bytes : int, optional
        Bytes that checkpoints of recurrent layers may take, those of all texts together; 0: no
        checkpoints; default: those of six for each text. The text is the same.
    prefix_cache : int or "all" or None
        Bytes of memory that finished texts may take, so that a prompt that begins with the same
        tokens processes only the others; "all": while there are sequences. None: no text shares
        anything with another one. The text is the same.
    threads : int, optional
        Threads of the CPU; default: all that this process may use.
    backend : str or Backend
        "cpu", "reference" or a backend object.
    adapters : mapping of str to path or Adapter, optional
        Adapters of the model (LoRA), by the names by which calls choose them.
    default_adapters : mapping of str to float, or sequence of str
        Those that a text has whose call names none, with their scales; default: none.

    Raises
    ------
    ModelFileError
        A file that cannot be read, or no model that is known.
    LinkError
        A drafter was asked for, and there is none that fits.
    CapacityError
        Sizes out of range, or no memory.

    Examples
    --------
    >>> with LM("demo", draft=3) as lm:
    ...     completion = lm.generate("def read_config(path):", max_tokens=8, temperature=0)
    >>> completion.finish_reason, len(completion.tokens)
    ('length', 8)
    """

    _instead = "make one in each process: LM(path); in threads use the same one"

    _has_said_no_tools = False

    def __init__(
        self,
        model: str | PathLike[str] | Model,
        *,
        n_ctx: int | None = None,
        draft: int | Literal["auto"] = "auto",
        drafter: DrafterLike | Sequence[DrafterLike] = "auto",
        draft_model: str | PathLike[str] | Model | None = None,
        n_seq_max: int = 4,
        n_batch: int = 512,
        kv_dtype: str = "f16",
        checkpoint_bytes: int | None = None,
        prefix_cache: PrefixCacheSize = "all",
        threads: int | None = None,
        backend: str | Backend = "cpu",
        adapters: Mapping[str, str | PathLike[str] | Adapter] | None = None,
        default_adapters: AdapterChoice = (),
    ) -> None:
        self._owned: list[Model | Adapter] = []
        draft = read_draft(draft)
        try:
            cross = open_cross(
                self._open(model, draft, sidecars=draft_model is None),
                n_ctx=n_ctx,
                draft=draft,
                drafter=drafter,
                draft_model=self._open_draft_model(draft_model, draft),
                n_seq_max=n_seq_max,
                n_batch=n_batch,
                kv_dtype=kv_dtype,
                checkpoint_bytes=checkpoint_bytes,
                threads=threads,
                backend=backend,
                adapters=self._open_adapters(adapters),
            )
            generator = Generator(
                cross, draft=draft, prefix_cache=prefix_cache, adapters=default_adapters
            )
        except BaseException:
            self._close_models()
            raise
        self._engine, self._embedder = Engine(generator), Embedder(cross)
        self._sampling: Sampling | Mapping[str, Any] = recommend_sampling(self.model).defaults

    @classmethod
    def of(cls, generator: Generator, sampling: SamplingOptions | None = None) -> LM:
        """Make an LM from a generator, with its Cross, drafters and settings.

        ``sampling`` are settings by name, as ``LM.sampling`` has them; where they have no seed, one
        is drawn for each text. Default: the generator's, with its seed.

        Do not use the generator or its Cross elsewhere while a text is generated. ``close`` leaves
        them as they are.

        Raises
        ------
        BatchError
            No generator.
        SamplingError
            Settings out of range, or with a name that is unknown.
        """
        if not isinstance(generator, Generator):
            raise BatchError(
                "LM.of() takes a Generator",
                got=spell(generator),
                fix="of a path or a Model: LM(model)",
            )
        lm = cls.__new__(cls)
        lm._owned, lm._engine = [], Engine(generator)
        lm._embedder = Embedder(generator.cross)
        lm._sampling = generator.sampling if sampling is None else read_defaults(sampling)
        return lm

    def _open(
        self, model: str | PathLike[str] | Model, draft: int | Literal["auto"], *, sidecars: bool
    ) -> Model:
        if isinstance(model, Model):
            return model
        opened = load_model(model, mtp=draft != 0, sidecars=sidecars)
        self._owned.append(opened)
        return opened

    def _open_adapters(
        self, given: Mapping[str, str | PathLike[str] | Adapter] | None
    ) -> dict[str, Adapter]:
        opened: dict[str, Adapter] = {}
        for name, adapter in read_named(given).items():
            if not isinstance(adapter, Adapter):
                adapter = load_adapter(adapter)
                self._owned.append(adapter)
            opened[name] = adapter
        return opened

    def _open_draft_model(
        self, given: str | PathLike[str] | Model | None, draft: int | Literal["auto"]
    ) -> Model | None:
        return None if given is None else self._open(given, draft, sidecars=False)

    def __repr__(self) -> str:
        drafters = [
            drafter.spec.name if drafter.spec else role
            for role, drafter in self._cross.drafters.items()
        ]
        state = ", closed" if self._engine.is_closed else ""
        return (
            f"LM({self.model.path.name!r}, {self.model.architecture}, n_ctx={self.n_ctx}, "
            f"draft={self.generator.draft!r}, drafter={', '.join(drafters) or None!r}{state})"
        )

    @property
    def generator(self) -> Generator:
        """The ``Generator`` that generates the texts."""
        return self._engine.generator

    @property
    def model(self) -> Model:
        """The model."""
        return self._cross.llm.model

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer.

        Raises
        ------
        ModelFileError
            It has none that is supported.
        """
        return self.model.tokenizer

    @property
    def n_ctx(self) -> int:
        """Tokens that fit, prompt and text together."""
        return self._cross.llm.n_ctx

    @property
    def sampling(self) -> dict[str, Any]:
        """The settings of a text whose call gives none, by name.

        They are those that the file recommends (``general.sampling.*``), and for what it does not
        mention llama.cpp's: temperature 0.8, top_k 40, top_p 0.95, min_p 0.05. In
        ``LM.of(generator)`` they are the generator's.
        """
        one = self._sampling
        named = msgspec.structs.asdict(one) if isinstance(one, Sampling) else dict(one)
        named.pop("stream", None)
        return named

    @property
    def adapters(self) -> dict[str, Adapter]:
        """The adapters of the model, by the names by which calls choose them."""
        found = self._cross.llm.runner.adapters
        return {} if found is None else {**found.by_name}

    @property
    def default_adapters(self) -> dict[str, float]:
        """The adapters of a text whose call names none, with their scales; may be set."""
        given = self.generator.adapters
        return {**given} if isinstance(given, Mapping) else dict.fromkeys(given, 1.0)

    @default_adapters.setter
    def default_adapters(self, adapters: AdapterChoice) -> None:
        self._cross.llm.runner.choose_adapters(adapters)
        self.generator.adapters = adapters

    @property
    def stats(self) -> Stats:
        """Counts and times of all texts so far."""
        return self.generator.stats

    @property
    def n_running(self) -> int:
        """How many texts are being written or wait."""
        return self._engine.n_running

    @property
    def _cross(self) -> Cross:
        return self.generator.cross

    @overload
    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        progress: bool | None = ...,
        **options: Unpack[TextOptions],
    ) -> Completion: ...

    @overload
    def generate(
        self,
        prompt: list[str] | list[list[int]] | list[str | Sequence[int]],
        *,
        progress: bool | None = ...,
        **options: Unpack[TextOptions],
    ) -> list[Completion]: ...

    @_show_options
    def generate(
        self,
        prompt: PromptLike | list[str] | list[list[int]] | list[PromptLike],
        *,
        progress: bool | None = None,
        **options: Unpack[TextOptions],
    ) -> Completion | list[Completion]:
        """Continue a prompt, or many at once.

        Parameters
        ----------
        prompt : str, token ids, or a list of prompts
            Many prompts share rounds; their texts are those of one call each.
        max_tokens : int, optional
            The budget; default: until the model ends the text or the context is full. Without a
            budget, and shifted, a text that the model does not end has no end.
        min_tokens : int
            Until the text has so many tokens no token that ends it is chosen, and no stop string
            ends it. Default: 0.
        stop : str or sequence of str
            The text ends before any of these, control tokens included: ``"<|im_start|>"``.
        stop_token_ids : int or sequence of int
            The text ends before these tokens, whatever ``ignore_eos`` says.
        banned_strings : str or sequence of str
            No token is chosen that would complete one of these in the text, however they are
            divided into tokens. Letters count as they are: "no" does not ban "No".
        special : bool
            Whether the text shows control tokens; by default they are no part of it.
        ignore_eos : bool
            Whether the text goes on after a token that ends it.
        temperature, top_k, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty
            As in ``Sampling``; so are ``logit_bias``, ``seed``, and the other samplers:
            ``top_n_sigma``, ``typical_p``, ``xtc_probability``, ``xtc_threshold``,
            ``dynatemp_range``, ``dynatemp_exponent``, ``penalty_last_n``, ``dry_multiplier``,
            ``dry_base``, ``dry_allowed_length``, ``dry_penalty_last_n`` and
            ``dry_sequence_breakers``. What is left out, or None, is as ``LM.sampling`` says; a seed
            is drawn for each text. In ``LM.of(generator)`` the generator's settings are the
            default.
            Tokens that the model file suppresses need a ``logit_bias`` to be chosen.
        sampling : Sampling, optional
            All of these at once; one seed holds for all prompts then.
        draft : int or "auto", optional
            Longest draft; default: as the LM was made. It does not change the text.
        drafters, draft_sampler, p_min
            Which drafters are asked, how drafts are chosen, and the least probability of one, as in
            ``Generator.add``. They do not change the text.
        grammar : Grammar or str, optional
            The form of the text, as ``Sampling`` takes it: a grammar in Lark's or llama.cpp's
            notation. Or one of these two:
        schema : mapping, str or type, optional
            A JSON schema, or a type that has one, as ``Grammar.of_schema`` takes it.
        regex : str, optional
            A regular expression, as ``Grammar.of_regex`` takes it.
        logprobs : int, optional
            Return each token's log-probability and those of the n likeliest; 0: the token's alone.
        prompt_logprobs : int, optional
            The same of the prompt's tokens, each after those before it. The whole prompt is
            processed for that; with ``max_tokens=0`` nothing else happens.
        logits_processor : callable, optional
            Called with the tokens so far, int32[n_tokens], and the logits, float32[n_vocab], once
            for each token of the text, in order; it may change the logits in place, or return
            others, before ``logit_bias``, penalties and cuts. One that is a ``PureProcessor`` is
            called for drafts, too. It does not call the LM.
        when_full : {"stop", "shift"}
            When the context is full the text ends, or a part of it is dropped and it goes on; so
            does ``n_keep``, the number of first tokens that stay, as in ``Generator.add``.
        adapters : mapping of str to float, or sequence of str, optional
            The adapters of the text, with their scales; empty: none. Default: as the LM was made.
        progress : bool, optional
            Whether a bar on standard error shows how many texts are finished; default: for many
            prompts, where that is a terminal.

        Returns
        -------
        Completion or list of Completion
            Of many prompts in their order.

        Raises
        ------
        BatchError, CapacityError
            A prompt that cannot be processed or does not fit; of many prompts none is begun.
        SamplingError
            Settings out of range, given twice, or with a name that is unknown.
        MtpcoreError
            Text, and the model has no tokenizer; or the LM is closed.
        Exception
            Whatever the logits processor raised.
        """
        self._engine.check_open()
        several = _read_prompts(prompt)
        progress = read(progress, _SHOWN, "progress is yes or no")
        jobs = self._make_jobs([prompt] if several is None else several, options)
        completions = self._finish(jobs, progress)
        return completions[0] if several is None else completions

    @overload
    async def agenerate(
        self,
        prompt: str | Sequence[int],
        *,
        progress: bool | None = ...,
        **options: Unpack[TextOptions],
    ) -> Completion: ...

    @overload
    async def agenerate(
        self,
        prompt: list[str] | list[list[int]] | list[str | Sequence[int]],
        *,
        progress: bool | None = ...,
        **options: Unpack[TextOptions],
    ) -> list[Completion]: ...

    @_show_options
    async def agenerate(
        self,
        prompt: PromptLike | list[str] | list[list[int]] | list[PromptLike],
        *,
        progress: bool | None = None,
        **options: Unpack[TextOptions],
    ) -> Completion | list[Completion]:
        """Continue a prompt, or many at once, without blocking the event loop.

        Cancelling the task ends the texts and frees their sequences.

        Parameters
        ----------
        prompt, progress, **options
            As in ``generate``.

        Returns
        -------
        Completion or list of Completion
            Of many prompts in their order.

        Raises
        ------
        MtpcoreError
            As ``generate``.
        """
        self._engine.check_open()
        several = _read_prompts(prompt)
        progress = read(progress, _SHOWN, "progress is yes or no")
        prompts = [prompt] if several is None else several
        jobs = await self._engine.run(lambda: self._make_jobs(prompts, options))
        completions = await self._afinish(jobs, progress)
        return completions[0] if several is None else completions

    @_show_options
    def stream(
        self,
        prompt: str | Sequence[int],
        **options: Unpack[TextOptions],
    ) -> Stream:
        """Continue a prompt, piece by piece as the text settles.

        Parameters
        ----------
        prompt : str or token ids
            What is continued.
        **options
            As in ``generate``, which gives the same text at once.

        Returns
        -------
        Stream
            An iterator of ``Piece``; ``close`` it, or drop it, to end the text.

        Raises
        ------
        MtpcoreError
            As ``generate``.
        """
        self._engine.check_open()
        return Stream(self._engine, self._make_job(_take_one(prompt), options))

    @_show_options
    def astream(
        self,
        prompt: str | Sequence[int],
        **options: Unpack[TextOptions],
    ) -> AsyncStream:
        """Continue a prompt, piece by piece, without blocking the event loop.

        Parameters
        ----------
        prompt : str or token ids
            What is continued; for a conversation what ``encode_chat`` returns.
        **options
            As in ``generate``.

        Returns
        -------
        AsyncStream
            For ``async for``. Cancelling the task frees the sequence.

        Raises
        ------
        MtpcoreError
            As ``generate``, with the first piece.
        """
        self._engine.check_open()
        return AsyncStream(self._engine, lambda: self._make_job(_take_one(prompt), options))

    @overload
    def embed(
        self,
        prompt: str | Sequence[int],
        *,
        pooling: Pooling | None = ...,
        tap: str = ...,
        normalize: bool | None = ...,
        adapters: AdapterChoice | None = ...,
    ) -> F32: ...

    @overload
    def embed(
        self,
        prompt: list[str] | list[list[int]] | list[str | Sequence[int]],
        *,
        pooling: Pooling | None = ...,
        tap: str = ...,
        normalize: bool | None = ...,
        adapters: AdapterChoice | None = ...,
    ) -> list[F32]: ...

    def embed(
        self,
        prompt: PromptLike | list[str] | list[list[int]] | list[PromptLike],
        *,
        pooling: Pooling | None = None,
        tap: str = "hidden",
        normalize: bool | None = None,
        adapters: AdapterChoice | None = None,
    ) -> F32 | list[F32]:
        """Return what the model makes of a text, as a vector, or of many at once.

        A vector depends on its text alone, to the last bit, whatever is read or written beside it.
        Texts are read in a context of its own, which is made by the first call and takes as much
        memory for keys and values as the LM's.

        Parameters
        ----------
        prompt : str, token ids, or a list of these
            As ``generate`` takes them.
        pooling : {"mean", "last", "none"}, optional
            The mean of the rows of all tokens, the row of the last one, or all of them. Default:
            what the file names (``pooling_type``); else the last, or of an encoder the mean.
        tap : str
            Which rows: ``"hidden"``, after the final norm; ``"residual"``, before it;
            ``"layer_input:3"``; or another tap of the model's graph.
        normalize : bool, optional
            Whether a vector is divided by its Euclidean length; default: yes, but for rows that are
            not pooled.
        adapters : mapping of str to float, or sequence of str, optional
            As in ``generate``; an encoder has none.

        Returns
        -------
        float32[width], float32[n_tokens, width] without pooling, or a list of them

        Raises
        ------
        MtpcoreError
            A text that has no tokens or does not fit, ids that are no tokens, no such tap or
            pooling, or a closed LM.
        """
        self._engine.check_open()
        several = _read_prompts(prompt)
        kind = self._embedder.choose(tap, pooling, normalize, self._adapters_of(adapters))
        encoded = self._encode_prompts([prompt] if several is None else several)
        vectors = [one for done in self._embedder.embed(encoded, kind) for one in done]
        return vectors[0] if several is None else vectors

    @overload
    async def aembed(
        self,
        prompt: str | Sequence[int],
        *,
        pooling: Pooling | None = ...,
        tap: str = ...,
        normalize: bool | None = ...,
        adapters: AdapterChoice | None = ...,
    ) -> F32: ...

    @overload
    async def aembed(
        self,
        prompt: list[str] | list[list[int]] | list[str | Sequence[int]],
        *,
        pooling: Pooling | None = ...,
        tap: str = ...,
        normalize: bool | None = ...,
        adapters: AdapterChoice | None = ...,
    ) -> list[F32]: ...

    async def aembed(
        self,
        prompt: PromptLike | list[str] | list[list[int]] | list[PromptLike],
        *,
        pooling: Pooling | None = None,
        tap: str = "hidden",
        normalize: bool | None = None,
        adapters: AdapterChoice | None = None,
    ) -> F32 | list[F32]:
        """Return what ``embed`` returns, without blocking the event loop.

        Passes take turns with the rounds of texts. Cancelling the task ends it after a pass.

        Parameters
        ----------
        prompt, pooling, tap, normalize, adapters
            As in ``embed``.

        Returns
        -------
        float32[width], float32[n_tokens, width] without pooling, or a list of them

        Raises
        ------
        MtpcoreError
            As ``embed``.
        """
        engine = self._engine
        engine.check_open()
        several = _read_prompts(prompt)
        kind = self._embedder.choose(tap, pooling, normalize, self._adapters_of(adapters))
        prompts = [prompt] if several is None else several
        encoded = await engine.run(lambda: self._encode_prompts(prompts))
        passes, vectors = self._embedder.embed(encoded, kind), list[F32]()
        while (done := await engine.run(lambda: next(passes, None))) is not None:
            vectors += done
        return vectors[0] if several is None else vectors

    def _adapters_of(self, given: AdapterChoice | None) -> AdapterChoice:
        default = () if self._cross.encoder is not None else self.generator.adapters
        return default if given is None else given

    @overload
    def chat(
        self,
        messages: str | Sequence[MessageLike],
        *,
        stream: Literal[False] = ...,
        **options: Unpack[ChatOptions],
    ) -> Completion: ...

    @overload
    def chat(
        self,
        messages: list[str] | Sequence[Sequence[MessageLike]],
        *,
        stream: Literal[False] = ...,
        **options: Unpack[ChatOptions],
    ) -> list[Completion]: ...

    @overload
    def chat(
        self,
        messages: str | Sequence[MessageLike],
        *,
        stream: Literal[True],
        **options: Unpack[ChatOptions],
    ) -> Stream: ...

    @_show_chat_options
    def chat(
        self,
        messages: Conversation | list[str] | Sequence[Sequence[MessageLike]],
        *,
        stream: bool = False,
        **options: Unpack[ChatOptions],
    ) -> Completion | list[Completion] | Stream:
        """Answer a conversation, written as the model's chat template has it, or several at once.

        A conversation that goes on from an earlier one is not processed again: what both begin with
        is still in the KV cache, unless other texts needed the place.

        Parameters
        ----------
        messages : str, sequence of mappings, or a list of several of these
            What a user says; or messages, each with ``role`` and ``content``, the last one to be
            answered. Of several conversations each is answered, as ``generate`` does with prompts.
        stream : bool
            Whether the answer comes piece by piece.
        tools : sequence of mappings, optional
            Tools that the model may call, as OpenAI's API has them; the template describes them.
        template_options : mapping, optional
            Further variables for the template.
        reasoning_effort : str, optional
            How much the model thinks, in a word that its template knows; ``none``: not at all. That
            is the variable ``reasoning_effort``, and for ``none`` ``enable_thinking``.
        continue_final_message : bool
            Whether the last message is the beginning of the answer.
        response_format : mapping or type, optional
            The form of the answer, as OpenAI's API has it: ``{"type": "json_schema", "json_schema":
            {"schema": ...}}`` or ``{"type": "json_object"}``; or a type, as ``schema`` takes it.
        tool_choice : str or mapping
            Which tools may be called, as OpenAI's API has it: ``auto``, ``none``, ``required``,
            ``{"type": "function", "function": {"name": ...}}``, or some of them: ``{"type":
            "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [...]}}``. Where one must be
            called or only some may be, and where one is ``strict``, arguments follow the schemas
            of the tools.
        **options
            As in ``generate``. A form (``grammar``, ``schema``, ``regex``) is that of what follows
            the reasoning, where the model thinks.

        Returns
        -------
        Completion, list of Completion, or Stream
            A completion has the answer's parts: ``content``, ``reasoning``, ``tool_calls``, and all
            as the ``message`` with which the conversation goes on. Pieces of a stream are of the
            text as the model writes it; its ``completion`` has the parts.

        Raises
        ------
        MtpcoreError
            As ``generate``; the model has no chat template, or it refuses a conversation.
        """
        stream = read(stream, Flag, "stream is yes or no")
        self._engine.check_open()
        several = _read_conversations(messages, stream)
        conversations = [messages] if several is None else several
        jobs = self._make_answers(conversations, options)
        if stream:
            return Stream(self._engine, jobs[0])
        completions = self._finish(jobs, None)
        return completions[0] if several is None else completions

    @overload
    async def achat(
        self,
        messages: str | Sequence[MessageLike],
        *,
        stream: Literal[False] = ...,
        **options: Unpack[ChatOptions],
    ) -> Completion: ...

    @overload
    async def achat(
        self,
        messages: list[str] | Sequence[Sequence[MessageLike]],
        *,
        stream: Literal[False] = ...,
        **options: Unpack[ChatOptions],
    ) -> list[Completion]: ...

    @overload
    async def achat(
        self,
        messages: str | Sequence[MessageLike],
        *,
        stream: Literal[True],
        **options: Unpack[ChatOptions],
    ) -> AsyncStream: ...

    @_show_chat_options
    async def achat(
        self,
        messages: Conversation | list[str] | Sequence[Sequence[MessageLike]],
        *,
        stream: bool = False,
        **options: Unpack[ChatOptions],
    ) -> Completion | list[Completion] | AsyncStream:
        """Answer a conversation, or several at once, without blocking the event loop.

        Cancelling the task ends the texts and frees their sequences.

        Parameters
        ----------
        messages, stream, tools, template_options
            As in ``chat``.
        reasoning_effort, continue_final_message, response_format, tool_choice
            As in ``chat``.
        **options
            As in ``generate``.

        Returns
        -------
        Completion, list of Completion, or AsyncStream

        Raises
        ------
        MtpcoreError
            As ``chat``.
        """
        stream = read(stream, Flag, "stream is yes or no")
        self._engine.check_open()
        several = _read_conversations(messages, stream)
        conversations = [messages] if several is None else several
        jobs = await self._engine.run(lambda: self._make_answers(conversations, options))
        if stream:
            return AsyncStream(self._engine, lambda: jobs[0])
        completions = await self._afinish(jobs, None)
        return completions[0] if several is None else completions

    def encode_chat(
        self,
        messages: str | Sequence[MessageLike],
        *,
        tools: Sequence[MessageLike] | None = None,
        template_options: MessageLike | None = None,
        reasoning_effort: str | None = None,
        continue_final_message: bool = False,
    ) -> list[int]:
        """Return a conversation as token ids, which ``generate`` and ``stream`` take as a prompt.

        Parameters
        ----------
        messages, tools, template_options, reasoning_effort, continue_final_message
            As ``chat`` takes them.

        Raises
        ------
        MtpcoreError
            As ``chat``.
        """
        template = self.model.chat_template
        if template is None:
            raise MtpcoreError(
                "the model has no chat template",
                where=str(self.model.path),
                fix="give generate() the text as the model knows it",
            )
        more = read_template_options(template_options, reasoning_effort)
        text = template.render(
            [{"role": "user", "content": messages}] if isinstance(messages, str) else messages,
            tools=tools,
            continue_final_message=read(
                continue_final_message, Flag, "continue_final_message is yes or no"
            ),
            **more,
        )
        if tools is not None and not template.reads_tools and not self._has_said_no_tools:
            self._has_said_no_tools = True
            log.warning("the chat template reads no tools: the model is told of none")
        return self.tokenizer.encode(text, add_special=False, parse_special=True)

    async def run_between_rounds(self, function: Callable[[], R]) -> R:
        """Call a function in the thread that runs rounds for event loops, while none runs there.

        So what it does with ``lm.generator`` or its Cross is in nobody's way.

        Parameters
        ----------
        function : callable

        Raises
        ------
        MtpcoreError
            The LM is closed, or no function.
        Exception
            What the function raises.
        """
        if not callable(function):
            raise BatchError("a function is called", got=spell(function))
        return await self._engine.run(function)

    def close(self) -> None:
        """End all texts, and close the model if the LM opened it; closing twice is no error."""
        self._engine.close()
        self._close_models()

    def _close_models(self) -> None:
        while self._owned:
            self._owned.pop().close()

    def _make_answers(self, conversations: Sequence[Any], options: ChatOptions) -> list[Job]:
        """Return a job for each conversation; an error says which of several it is about."""
        writing, of_texts, choice = split_chat_options(options)
        tools = writing["tools"] = _read_tools(writing.get("tools"))
        if read_choice(choice).names == ():
            tools = writing["tools"] = None
        prompts = []
        for i, messages in enumerate(conversations):
            try:
                prompts.append(self.encode_chat(messages, **writing))
            except MtpcoreError as error:
                if len(conversations) == 1:
                    raise
                raise error.at(f"messages[{i}] of {len(conversations)}") from error
        parsings = [AnswerParsing.of(self.model, prompt, tools or ()) for prompt in prompts]
        return self._make_jobs(prompts, of_texts, parsings, choice)

    def _make_jobs(
        self,
        prompts: Sequence[Any],
        options: TextOptions,
        parsings: Sequence[AnswerParsing | None] = (),
        choice: object = "auto",
    ) -> list[Job]:
        """Return a job for each prompt, an answer's with its parsing and which tools it may call.

        An error says which of several it is about.
        """
        parsings = parsings or [None] * len(prompts)
        if len(prompts) == 1:
            return [self._make_job(prompts[0], options, parsings[0], choice)]
        read_options(options, self._sampling)  # what is wrong with them is no prompt's fault
        jobs = []
        for i, prompt in enumerate(prompts):
            try:
                jobs.append(self._make_job(prompt, options, parsings[i], choice))
            except (BatchError, CapacityError) as error:
                raise error.at(f"prompts[{i}] of {len(prompts)}") from error
        return jobs

    def _make_job(
        self,
        prompt: Any,
        options: TextOptions,
        parsing: AnswerParsing | None = None,
        choice: object = "auto",
    ) -> Job:
        if isinstance(prompt, str):
            prompt = self.tokenizer.encode(prompt)
        of_request = read_options(options, self._sampling)
        if parsing is not None and (sampling := of_request["sampling"]) is not None:
            of_request["sampling"] = answering(self.model, prompt, sampling, parsing.tools, choice)
        request = self.generator.request(prompt, **of_request)
        return Job(request, has_text=self.model.has_tokenizer, parsing=parsing)

    def _encode_prompts(self, prompts: Sequence[Any]) -> list[list[int]]:
        """Return prompts as token ids that can be read; an error says which it is about."""
        encoded = list[list[int]]()
        for i, prompt in enumerate(prompts):
            ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
            try:
                encoded.append(self._embedder.check(integers(ids, "prompt")))
            except (BatchError, CapacityError) as error:
                if len(prompts) == 1:
                    raise
                raise error.at(f"prompts[{i}] of {len(prompts)}") from error
        return encoded

    def _finish(self, jobs: Sequence[Job], progress: bool | None) -> list[Completion]:
        """Wait for texts; where one of them cannot be finished, all of them end."""
        engine = self._engine
        try:
            engine.submit(jobs)
            with show_progress(len(jobs), progress) as show:
                while not _are_done(jobs):
                    engine.advance()
                    show(sum(job.is_done for job in jobs))
            return [job.completion() for job in jobs]
        finally:
            engine.cancel(jobs)

    async def _afinish(self, jobs: Sequence[Job], progress: bool | None) -> list[Completion]:
        """As ``_finish``, while the event loop is free."""
        engine = self._engine
        try:
            engine.submit(jobs)
            with show_progress(len(jobs), progress) as show:
                while not _are_done(jobs):
                    await engine.advance_together()
                    show(sum(job.is_done for job in jobs))
            return [job.completion() for job in jobs]
        finally:
            engine.cancel(jobs)


def _are_done(jobs: Sequence[Job]) -> bool:
    """Say whether all texts are finished; raise what one of them ended with."""
    for job in jobs:
        job.check()
    return all(job.is_done for job in jobs)


def _take_one(prompt: object) -> object:
    """Return a prompt; refuse a list of them."""
    if _read_prompts(prompt):
        raise BatchError(
            "a stream continues one prompt",
            wanted="a text, or a list of token ids",
            got="a list of prompts",
            fix="give generate() the list, or make a stream of each prompt",
        )
    return prompt


def _read_prompts(prompt: object) -> list[Any] | None:
    """Return a list of prompts; None where there is a single one."""
    try:
        prompts = list(prompt) if isinstance(prompt, (list, tuple)) else None
    except MemoryError:
        raise
    except Exception as error:  # whatever a caller's list raises
        raise BatchError(
            "a prompt is a text, token ids, or a list of prompts", got=type(prompt).__name__
        ) from error
    return None if prompts and is_integer(prompts[0]) else prompts


def _read_conversations(messages: object, stream: bool) -> list[Any] | None:
    """Return a list of conversations; None where there is a single one."""
    try:
        given = list(messages) if isinstance(messages, (list, tuple)) else []
    except MemoryError:
        raise
    except Exception as error:  # whatever a caller's list raises
        raise MtpcoreError(
            "a conversation is a text or a list of messages", got=type(messages).__name__
        ) from error
    if not given or not isinstance(given[0], (str, list, tuple)):
        return None
    if stream:
        raise BatchError(
            "a stream answers one conversation",
            got=f"a list of {len(given)}",
            fix="leave stream out, or make a stream of each",
        )
    return given


def _read_tools(given: Any) -> Any:
    """Return tools as a list, to be read more than once; what are no tools the template refuses."""
    cause = None
    try:
        if given is None or isinstance(given, _ONE):
            return given
        if isinstance(given, Iterable):
            return [*given]
    except MemoryError:
        raise
    except Exception as error:  # whatever a caller's own raises
        cause = error
    raise MtpcoreError("tools are a list of mappings", where="chat", got=spell(given)) from cause
