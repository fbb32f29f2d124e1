"""Models: mapped files, hyper-parameters, and the graphs that can be built of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar, copy_context
from functools import cached_property, partial
from pathlib import Path
from threading import RLock
from types import MappingProxyType
from typing import Any, Literal, TypeVar
from weakref import ReferenceType, ref

import msgspec

from mtpcore.acts.closing import Closing
from mtpcore.acts.guards import exclusive, holding
from mtpcore.boundary.arguments import expect, read_below
from mtpcore.boundary.copies import Uncopied
from mtpcore.boundary.forks import give_lock
from mtpcore.declarations.backend import BackendSpec
from mtpcore.declarations.checks import check_codebooks, check_shape, check_struct
from mtpcore.declarations.draft_model import as_draft_model
from mtpcore.declarations.spec import (
    TARGET,
    Codebooks,
    DrafterSpec,
    Feed,
    ModelSizes,
    ModelSpec,
    Tap,
    read_taps,
)
from mtpcore.errors import (
    GraphError,
    LinkError,
    ModelFileError,
    MtpcoreError,
    PluginError,
    spell,
)
from mtpcore.gguf import (
    ChatTemplate,
    MetadataValue,
    ModelFile,
    Tensor,
    Tokenizer,
    read_chat_template,
    read_tokenizer,
)
from mtpcore.gguf.adapter import Adapter
from mtpcore.gguf.answer_format import AnswerFormat, derive_format
from mtpcore.gguf.response_template import ResponseTemplate, read_response_template
from mtpcore.gguf.types import is_float, type_name
from mtpcore.graph import GraphBuilder, GraphType, MemoryLayer, Outputs, Program
from mtpcore.graph.ops import OPS
from mtpcore.runtime.fit import FittedDrafter
from mtpcore.runtime.lending import PackedWeights, TieUse, borrow, check_target, report_ties
from mtpcore.runtime.scales import find_scales
from mtpcore.runtime.sidecar import Sidecar
from mtpcore.sampling import GrammarCompiler

__all__ = ["Layout", "Model"]

log = logging.getLogger("mtpcore")

T = TypeVar("T")

Layout = Literal["combined", "trunk-only", "mtp-only"]
"""What a file holds: a trunk with a head, a trunk alone, or a drafter alone."""


_asked: ContextVar[tuple[Any, ...]] = ContextVar("programs that are being built", default=())


class Model(Closing, Uncopied):
    """A model file that is open; ``load_model`` makes one. A context manager.

    Parameters
    ----------
    file, spec, hparams, tensors, layout, keys_read, absent, draft_adapter
        As the attributes say.
    fitted : sequence of FittedDrafter
        The drafters that the file holds, the most promising first.

    Attributes
    ----------
    spec : ModelSpec or None
        The trunk's declaration; None where the file holds a drafter alone.
    hparams : struct
        ``n_vocab``, ``width``, ``n_layers``, and what the family adds.
    tensors : mapping of str to Tensor
        Those of heads are not among them where the model was loaded with ``mtp=False``.
    packed : mapping
        Packed weights by (backend, layout, tensor); contexts share them.
    repack : bool
        Whether weights are packed for the kernels, or read where they lie in the file.
    file_layout : str
        ``combined``, ``trunk-only`` or ``mtp-only``: what the files hold, loaded or not.
    keys_read : set of str
        Metadata keys that declarations asked for.
    absent_plugins : str
        Installed plugins that were not asked, and why; empty if there are none.
    backends : sequence of BackendSpec
        Those by whose names contexts choose: of mtpcore, and of the plugins that were asked.
    sidecars : tuple of Sidecar
        Files beside the model that may hold its drafter, and which one is used; empty where the
        caller chose.
    draft_adapter : Adapter or None
        What drafts for the model, where that is an adapter of it.
    draft_model_opener : callable or None
        Loads the draft model in a sidecar; ``open_draft_model`` calls it.
    lock : RLock
        Held while a thread builds programs or packs weights.
    """

    _instead = "load the file in each process: load_model(path)"

    lock: RLock

    def __init__(
        self,
        file: ModelFile,
        spec: ModelSpec | None,
        hparams: ModelSizes,
        fitted: Sequence[FittedDrafter] = (),
        *,
        tensors: Mapping[str, Tensor] | None = None,
        layout: Layout = "combined",
        keys_read: set[str] | None = None,
        absent: str = "",
        backends: Sequence[BackendSpec] = (),
        draft_adapter: Adapter | None = None,
    ) -> None:
        self._answer_format: tuple[ChatTemplate, AnswerFormat] | None = None
        self._response_template: tuple[ChatTemplate, ResponseTemplate | None] | None = None
        self._given_response: tuple[ResponseTemplate | None] | None = None
        self._file, self.spec, self.hparams = file, spec, hparams
        self._is_closed = False
        self.tensors = MappingProxyType(dict(file.tensors if tensors is None else tensors))
        trunk = {name: t for name, t in self.tensors.items() if name not in file.head_only}
        self._trunk_tensors = MappingProxyType(trunk)
        self._fitted = {drafter.spec.name: drafter for drafter in fitted}
        self._as_draft_model: FittedDrafter | None = None
        if spec is not None and layout != "mtp-only" and not spec.feeds:
            self._as_draft_model = FittedDrafter(as_draft_model(spec), 0, hparams)
        self._target: Model | None = None
        self.packed, self.repack = PackedWeights(), True
        self._programs: dict[Any, Program] = {}
        give_lock(self, "lock", RLock)
        self.file_layout, self.absent_plugins, self.backends = layout, absent, backends
        self.keys_read = set() if keys_read is None else keys_read
        self.sidecars: tuple[Sidecar, ...] = ()
        self.draft_adapter = draft_adapter
        self.draft_model_opener: Callable[[], Model] | None = None
        self._draft_model: ReferenceType[Model] | None = None

    def __repr__(self) -> str:
        return f"Model({str(self.path)!r}, {self.architecture}, {self.file_layout})"

    @property
    def path(self) -> Path:
        """The file, the first of several."""
        return self._file.path

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files."""
        return tuple(file.path for file in self._file.files)

    @property
    def parts(self) -> tuple[ModelFile, ...]:
        """Its file and the companion, as they are, where the model comes in two; else empty."""
        return self._file.parts

    @property
    def head_only(self) -> frozenset[str]:
        """Tensors that a head's file brought: the trunk's graphs do not see them."""
        return self._file.head_only

    @property
    def architecture(self) -> str:
        """``general.architecture``."""
        return self._file.architecture

    @property
    def metadata(self) -> Mapping[str, MetadataValue]:
        """The files' metadata by key; lists of numbers are arrays [n]."""
        return MappingProxyType(self._file.metadata)

    @property
    def scales(self) -> Mapping[str, str]:
        """The scales beside matrices that count; see ``find_scales``."""
        lender = self._target.spec if self._target else None
        lent = {name: t for name, t in self.tensors.items() if name.startswith(TARGET)}
        own = {name: t for name, t in self.tensors.items() if name not in lent}
        return {
            **find_scales(own, self.spec.scaled if self.spec else ()),
            **find_scales(lent, lender.scaled if lender else ()),
        }

    @property
    def n_bytes(self) -> int:
        """Bytes of ``tensors`` in the file, without borrowed ones."""
        names = (name for name in self.tensors if not name.startswith(TARGET))
        return sum(self.tensors[name].n_bytes for name in names)

    @property
    def has_tokenizer(self) -> bool:
        """Whether the file has a tokenizer that is supported."""
        return self._tokenizer is not None

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer.

        Raises
        ------
        ModelFileError
            The file has none that is supported; ``has_tokenizer`` tells.
        """
        if self._tokenizer is None:
            raise ModelFileError(
                "the file has no tokenizer that is supported",
                where=str(self.path),
                got=self._file.metadata.get("tokenizer.ggml.model", "none"),
                fix="give token ids in place of texts",
            )
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self.__dict__.pop("grammars", None)

    @cached_property
    def _tokenizer(self) -> Tokenizer | None:
        return read_tokenizer(self._file.metadata, str(self.path))

    @cached_property
    def grammars(self) -> GrammarCompiler:
        """What makes matchers of grammars for the model's vocabulary.

        Raises
        ------
        ModelFileError
            As ``tokenizer``.
        SamplingError
            llguidance is not installed.
        """
        return GrammarCompiler(self.tokenizer, self.hparams.n_vocab)

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """The chat template, or None where the file has none."""
        return read_chat_template(self._file.metadata, self._tokenizer, str(self.path))

    @property
    def response_template(self) -> ResponseTemplate | None:
        """How answers are parsed: by the file, or by the family; None: as ``answer_format`` has it.

        The family's is for chat templates with its calls' marks, or such as show no other ones.
        What is set takes the place of both; None: answers are parsed as ``answer_format`` has it.

        Raises
        ------
        ModelFileError
            The file's is malformed.
        PluginError
            The family's is.
        """
        template = self.chat_template
        if template is None:
            return None
        if self._response_template is None or self._response_template[0] is not template:
            self._response_template = template, self._find_response_template(template)
        return self._response_template[1]

    @response_template.setter
    def response_template(self, template: ResponseTemplate | None) -> None:
        self._given_response, self._response_template = (template,), None

    def _find_response_template(self, template: ChatTemplate) -> ResponseTemplate | None:
        if self._given_response == (None,):
            return None
        if self._given_response is not None:
            (of_file,) = self._given_response
        else:
            of_file = read_response_template(self._file.metadata, str(self.path))
        if of_file is not None:
            if of_file.begins(template):
                return of_file
            log.warning(
                "%s: its response template is for another chat template, and is left out", self.path
            )
        if self.spec is None or not self.spec.response_template:
            return None
        try:
            found = ResponseTemplate(self.spec.response_template, self.spec.full_name)
        except ModelFileError as error:
            raise PluginError(
                "a malformed response template", where=self.spec.full_name, got=spell(error, str)
            ) from error
        shows_others = self.answer_format.calls is not None
        special = () if shows_others or self._tokenizer is None else self._tokenizer.special_texts
        is_own = found.has_calls_of(template, special) and found.begins(template)
        return found if is_own else None

    @property
    def answer_format(self) -> AnswerFormat:
        """The form of answers to conversations, as the chat template shows it."""
        template = self.chat_template
        if template is None:
            return AnswerFormat()
        if self._answer_format is None or self._answer_format[0] is not template:
            self._answer_format = template, derive_format(template)
        return self._answer_format[1]

    @cached_property
    def codebooks(self) -> Codebooks | None:
        """The codes that the model writes, or None where it writes tokens.

        Raises
        ------
        PluginError
            What the plugin declares is none.
        """
        if self.spec is None or self.spec.codebooks is None:
            return None
        where = self.spec.full_name
        try:
            return check_codebooks(self.spec.codebooks(self.hparams), self.spec)
        except PluginError as error:
            raise error.at(where) from error
        except Exception as error:  # whatever a plugin raises
            raise PluginError(
                f"codebooks raised {type(error).__name__}: {spell(error, str)}", where=where
            ) from error

    def n_tokens(self, graph_type: GraphType | str) -> int:
        """Return how many tokens a graph of a ``graph_type`` knows: the vocabulary's, or codes.

        Raises
        ------
        GraphError
            Not the name of a type.
        """
        codebooks = self.codebooks
        if codebooks is not None and GraphType(graph_type).name == codebooks.graph:
            return codebooks.n_first
        return int(self.hparams.n_vocab)

    @property
    def drafters(self) -> tuple[DrafterSpec, ...]:
        """The drafters that fit, best first, with the file's numbers in place of keys."""
        return tuple(drafter.spec for drafter in self._fitted.values())

    @property
    def as_draft_model(self) -> DrafterSpec | None:
        """How the trunk drafts for another model; None of a file that holds a drafter alone."""
        return None if self._as_draft_model is None else self._as_draft_model.spec

    @property
    def drafters_for_others(self) -> tuple[DrafterSpec, ...]:
        """What drafts where this is another model's ``draft_model``: its trunk, if it has one."""
        return self.drafters if self.as_draft_model is None else (self.as_draft_model,)

    def _find_fitted(self, name: str) -> FittedDrafter | None:
        trunk = self._as_draft_model
        return trunk if trunk and trunk.spec.name == name else self._fitted.get(name)

    def find_drafter(self, drafter: DrafterSpec | str | None = None) -> DrafterSpec:
        """Return a drafter by name, or the best one that is no variant of another.

        ``draft_model`` is the trunk, as the drafter of another model. A declaration in hand names a
        drafter, and says how it is to draft: in chains or a tree.

        Raises
        ------
        PluginError
            The model has none, or none of that name, or the declaration is of no shape.
        """
        if isinstance(drafter, DrafterSpec):
            check_struct(drafter, "DrafterSpec")
        elif drafter is not None:
            drafter = expect(drafter, str, "a drafter is named by a text", error=PluginError)
        name = drafter.name if isinstance(drafter, DrafterSpec) else drafter
        if name is None and self._fitted and not self.drafters[0].variant_of:
            return self.drafters[0]
        fitted = None if name is None else self._find_fitted(name)
        if fitted is not None:
            spec = fitted.spec
            if isinstance(drafter, DrafterSpec) and (
                drafter.shape in ("chain", "tree") or drafter.tree != spec.tree
            ):
                spec = msgspec.structs.replace(spec, shape=drafter.shape, tree=drafter.tree)
                check_shape(spec)
            return spec
        raise PluginError(
            "the model has no drafter" + (f" {name!r}" if name else ""),
            where=str(self.path),
            wanted=", ".join(self._fitted) or None,
            fix="load a file with its head, complete it with mtp_path= (--mtp-path), install the "
            "drafter's plugin, or take lookup, which every model has"
            + (f"; left out: {self.absent_plugins}" if self.absent_plugins else "")
            + "".join(
                f"; {beside.path} is not used ({beside.reason}): name it as draft_model= (-md) or "
                "mtp_path="
                for beside in self.sidecars
                if name in beside.drafters and not beside.used
            ),
        )

    @exclusive
    def open_draft_model(self) -> Model | None:
        """Return the model of the drafter in a sidecar, or None where no sidecar has its own.

        A sidecar that completes this model's file, such as a head, is part of this model instead.
        Callers that hold the draft model at the same time get the same one.

        Raises
        ------
        ModelFileError
            The sidecar cannot be read any more.
        """
        if self.draft_model_opener is None:
            return None
        opened = self._draft_model() if self._draft_model is not None else None
        if opened is None or opened.is_closed:
            opened = self.draft_model_opener()
            self._draft_model = ref(opened)
        return opened

    def borrow_from(self, target: Model) -> None:
        """Let ``target:name`` in ties mean a tensor of ``target``; linking calls it.

        For a drafter in a file of its own. ``target`` is kept alive by this model.

        Raises
        ------
        LinkError
            The drafter was made for another architecture, width or vocabulary, or it borrows
            already from another model.
        """
        expect(target, Model, "a drafter borrows from a model", error=LinkError)
        if target is self:
            return
        holding(self.lock, self._borrow_from, target)

    def _borrow_from(self, target: Model) -> None:
        if self._target is target:
            return
        where = f"{self.path} and {target.path}"
        if self._target is not None:
            raise LinkError(
                "the drafter's model borrows from another target",
                where=where,
                got=str(self._target.path),
                fix="load the drafter's file once more",
            )
        for drafter in self._fitted.values():
            check_target(drafter, target.architecture, target.hparams, where)
        borrowed = borrow(
            [drafter.spec for drafter in self._fitted.values()], target._trunk_tensors
        )
        self.tensors = MappingProxyType({**self.tensors, **borrowed})
        self._programs.clear()
        self.packed.lender = target.packed
        self._target = target  # last: in a child that was forked before, all is done once more

    @exclusive
    def give_back(self) -> None:
        """Undo ``borrow_from``, before a context was made that others can see."""
        self._target = self.packed.lender = None
        tensors = {name: t for name, t in self.tensors.items() if not name.startswith(TARGET)}
        self.tensors = MappingProxyType(tensors)
        self._programs.clear()

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._is_closed

    @property
    def target(self) -> Model | None:
        """The target that a drafter in a file of its own borrows from."""
        return self._target

    def program(
        self,
        graph_type: GraphType | str = GraphType.LLM,
        *,
        taps: Sequence[Tap | str] = (),
        drafter: DrafterSpec | str | None = None,
        head: int = 0,
        n_ctx: int = 0,
    ) -> Program:
        """Build a graph, or return the one that was built with the same arguments.

        Parameters
        ----------
        graph_type : GraphType or str
        taps : sequence of Tap
            Hidden states to hand out besides logits.
        drafter : DrafterSpec or str, optional
            Whose graph; default: the trunk's, and for ``GraphType.DRAFT`` the best drafter's.
        head : int
            Which of several heads.
        n_ctx : int
            Places of the context that runs it: some models compute otherwise in long ones.

        Raises
        ------
        GraphError, PluginError, ModelFileError
            No such graph, or it breaks the grammar, or the plugin fails, which is named; the model
            was closed.
        """
        kind, points = GraphType(graph_type), read_taps(taps)
        fitted: FittedDrafter | None = None
        spec: ModelSpec | DrafterSpec
        if drafter is None and kind != GraphType.DRAFT:
            spec = self._trunk()
        else:
            fitted = self._find_fitted(self.find_drafter(drafter).name)
            assert fitted is not None
            spec = fitted.spec
            if spec.adapter:  # the trunk's graph, which the adapter changes where it runs
                spec, fitted, kind = self._trunk(), None, GraphType.LLM
        n_heads = fitted.n_heads if fitted else 1
        head = read_below(head, n_heads, "no such head", where=spec.name, error=GraphError)
        is_long = self.is_long(n_ctx, spec)
        key = (kind.name, points, spec.name, fitted is None, head, is_long)
        build = partial(self._build, kind, points, spec, fitted, head, is_long)
        return holding(self.lock, self._program, key, spec.full_name, build)

    def is_long(self, n_ctx: int, spec: ModelSpec | DrafterSpec | None = None) -> bool:
        """Say whether a context is longer than those for which a file's short factors are.

        Parameters
        ----------
        n_ctx : int
            Its places.
        spec : ModelSpec or DrafterSpec, optional
            Whose graph runs in it; default: the trunk's.
        """
        fitted = self._find_fitted(spec.name) if isinstance(spec, DrafterSpec) else None
        n_short = getattr(fitted.hparams if fitted else self.hparams, "n_ctx_short", None)
        return n_short is not None and n_ctx > n_short

    def _program(self, key: Any, where: str, build: Callable[[], Program]) -> Program:
        """Return the program of this key, which is built when it is first asked for."""
        if self._is_closed:
            raise ModelFileError(
                "the file is closed", where=str(self.path), fix="load the model again"
            )
        if key not in self._programs:
            if key in _asked.get():
                raise GraphError(
                    "a feed reads what its own graph makes",
                    where=where,
                    wanted="taps of a graph that can be built before the one with the slot",
                    fix="declare a graph of its own for what the feed reads: graphs=, and "
                    "Feed(graph=)",
                )
            # What is noted there ends with the call, wherever an interrupt cuts that off.
            asked = copy_context()
            asked.run(_asked.set, (*_asked.get(), key))
            self._programs[key] = asked.run(build)
        return self._programs[key]

    def _trunk(self) -> ModelSpec:
        if self.spec is None or self.file_layout == "mtp-only":
            raise ModelFileError(
                "the file holds a drafter alone",
                where=str(self.path),
                fix="load the trunk's file, with this one as mtp_path= (--mtp-path) or linked as "
                "draft_model= (-md)",
            )
        return self.spec

    def _build(
        self,
        kind: GraphType,
        taps: tuple[Tap, ...],
        spec: ModelSpec | DrafterSpec,
        fitted: FittedDrafter | None,
        head: int,
        is_long: bool,
    ) -> Program:
        where = spec.full_name
        main = GraphType.DRAFT if isinstance(spec, DrafterSpec) else GraphType.LLM
        build = spec.build if kind == main else dict(spec.graphs).get(kind.name)
        if build is None:
            known = ([main.name] if spec.build else []) + [name for name, _ in spec.graphs]
            raise GraphError(
                "no graph of this type", where=where, wanted=", ".join(known), got=kind.name
            )
        graph = "" if kind == main else kind.name
        g = self._builder(spec, fitted, head, taps, graph, is_long)
        try:
            outputs = build(g, g.inputs, fitted.hparams if fitted else self.hparams)
            if not isinstance(outputs, Outputs):
                raise GraphError(
                    "build returned something else",
                    where="build",
                    wanted="Outputs",
                    got=type(outputs).__name__,
                )
            program = g.finish(outputs)
            self._check_logits(program, spec, kind)
            self._check_tables(program)
            self._check_types(program)
            self._check_scales(program)
            return program
        except MtpcoreError as error:
            raise error.at(where) from error
        except Exception as error:  # whatever a plugin's build raises
            raise PluginError(
                f"build raised {type(error).__name__}: {spell(error, str)}", where=where
            ) from error

    def _check_logits(
        self, program: Program, spec: ModelSpec | DrafterSpec, kind: GraphType
    ) -> None:
        """Refuse logits of other tokens than the model's; choosing from them goes by token id."""
        mapped = isinstance(spec, DrafterSpec) and spec.vocabulary
        if mapped or "logits" not in program.outputs:
            return
        wanted, got = self.hparams.n_vocab, program.shape("logits")[1]
        codebooks = self.codebooks
        if codebooks is not None and isinstance(spec, ModelSpec):
            wanted = codebooks.size if kind.name == codebooks.graph else codebooks.n_first
        if got != wanted:
            raise GraphError(
                "one logit a token of the vocabulary",
                where=f"logits ({program.values[program.outputs['logits']].name})",
                wanted=wanted,
                got=got,
                fix="convert the model again, or give the right file: its output matrix does not "
                "fit its embedding table",
            )

    def _check_tables(self, program: Program) -> None:
        """Refuse embedding tables without a row for each token of the vocabulary, or each code."""
        codebooks = self.codebooks
        if codebooks is not None and program.n_codes:
            sizes = codebooks.n_first, *[codebooks.size] * (program.n_codes - 1)
            if program.n_per_codebook != sizes:
                raise GraphError(
                    "the table of codes has parts of other sizes",
                    where=program.name,
                    wanted=sizes,
                    got=program.n_per_codebook,
                    fix="convert the model again: its configuration does not fit its tables",
                )
        for node in program.nodes:
            table = node.weights[0] if node.op == "embed" else None
            if table is not None and table.shape[0] < self.hparams.n_vocab:
                raise GraphError(
                    "the embedding table is too short for the vocabulary",
                    where=f"{node.name} ({table.tensor})",
                    wanted=f"{self.hparams.n_vocab} rows",
                    got=f"{table.shape[0]} rows",
                    fix="convert the model again; a head that reads the model's own table needs "
                    "none in its file",
                )

    def _check_types(self, program: Program) -> None:
        """Refuse weights that no operation can read: they would fail only when they are packed."""
        for node in program.nodes:
            for i, weight in enumerate(node.weights):
                if weight is None or i in OPS[node.op].integer_weights:
                    continue
                kind = self.tensors[weight.tensor].type
                if not is_float(kind):
                    raise GraphError(
                        "a weight that is no floating-point tensor",
                        where=f"{node.name} ({weight.tensor})",
                        wanted="F32, F16, BF16 or a quantised type",
                        got=type_name(kind),
                        fix="correct the tensor's type where it comes from, and convert again",
                    )

    def _check_scales(self, program: Program) -> None:
        """Refuse weights whose scale no operation multiplies by: they are of another magnitude."""
        read = {weight.tensor for node in program.nodes for weight in node.weights if weight}
        for stem, scale in self.scales.items():
            weight = f"{stem}.weight"
            if weight in read and scale not in read:
                raise GraphError(
                    "a weight with a scale of its own, which no operation here multiplies by",
                    where=scale,
                    wanted=f"{weight} alone",
                    got=f"{self.tensors[weight].type_name} and a scale",
                    fix="take the model in another type than NVFP4",
                )

    def _builder(
        self,
        spec: ModelSpec | DrafterSpec,
        fitted: FittedDrafter | None,
        head: int,
        taps: tuple[Tap, ...] = (),
        graph: str = "",
        is_long: bool = False,
    ) -> GraphBuilder:
        hparams = fitted.hparams if fitted else self.hparams
        trunk_ties = self.spec.ties if self.spec and fitted else ()
        of_trunk = fitted is None or fitted is self._as_draft_model
        return GraphBuilder(
            spec.name if not graph else f"{spec.name}.{graph}",
            self._trunk_tensors if of_trunk else self.tensors,
            ties=(*trunk_ties, *spec.ties),
            slots={f.slot: self._width(f, fitted, head) for f in spec.feeds if f.graph == graph},
            taps=taps,
            n=fitted.first_block + head if fitted else None,
            axes=getattr(hparams, "rotary_axes", 1),
            whole=[
                f.slot for f in spec.feeds if f.graph == graph and f.pairing == "whole-sequence"
            ],
            shared=self._shared_layers(spec, hparams),
            scales=self.scales,
            is_long=is_long,
        )

    def _shared_layers(
        self, spec: ModelSpec | DrafterSpec, hparams: Any
    ) -> list[MemoryLayer] | None:
        """Return for each layer of a drafter the one of the target's memory that it reads.

        None where it reads none, or no target is linked.

        Raises
        ------
        PluginError
            The declaration names a layer that the target does not store.
        """
        target = self._target if isinstance(spec, DrafterSpec) and spec.standalone else self
        if not isinstance(spec, DrafterSpec) or spec.shared_memory is None or target is None:
            return None
        stored = {layer.layer: layer for layer in target.program().memory}
        numbers = [*spec.shared_memory.layers((*stored.values(),), hparams)]
        if lacking := [n for n in numbers if n not in stored]:
            raise PluginError(
                "the target stores no such layer",
                where=f"{spec.name}: shared_memory",
                wanted=", ".join(map(str, stored)),
                got=", ".join(map(str, lacking)),
                fix="link the target that the drafter was made for",
            )
        return [stored[n] for n in numbers]

    def _width(self, feed: Feed, fitted: FittedDrafter | None, head: int) -> int:
        """Return the width of a slot: that of its taps together, or of what a later head reads."""
        if feed.width and (head or not feed.taps):
            assert isinstance(feed.width, int)  # keys are read by now
            return feed.width
        if feed.src not in ("target", GraphType.LLM.name):
            drafter = fitted.spec if fitted else None
            program = self.program(GraphType(feed.src), drafter=drafter)
            return sum(int(program.shape(tap)[1]) for tap in feed.taps)
        hparams = fitted.hparams if fitted else self.hparams
        return sum(self._tap_width(Tap.parse(tap), hparams) for tap in feed.taps)

    def _tap_width(self, tap: Tap, hparams: Any) -> int:
        if tap.point in ("hidden", "residual", "layer_input") or self.file_layout == "mtp-only":
            return int(getattr(hparams, "target_width", hparams.width))
        return int(self.program(GraphType.LLM, taps=(tap,)).shape(str(tap))[1])

    def find_weight(self, name: str, drafter: DrafterSpec | str | None = None) -> Tensor | None:
        """Return the tensor that a drafter's first head calls ``name``, or None.

        Raises
        ------
        PluginError
            As ``find_drafter``, or the name is no text.
        """
        name = expect(name, str, "a weight is named by a text", error=PluginError)
        fitted = self._fitted[self.find_drafter(drafter).name]
        weight = self._builder(fitted.spec, fitted, 0).resolve(name)
        return None if weight is None else self.tensors[weight.tensor]

    def tie_report(self, drafter: DrafterSpec | str | None = None) -> tuple[TieUse, ...]:
        """Return where each tied weight of a drafter comes from, head by head.

        Raises
        ------
        PluginError
            As ``find_drafter``.
        """
        fitted = self._find_fitted(self.find_drafter(drafter).name)
        assert fitted is not None
        report = []
        for head in range(fitted.n_heads):
            g = self._builder(fitted.spec, fitted, head)
            report += report_ties(g, fitted.spec.ties, self.tensors, self.head_only)
        return tuple(dict.fromkeys(report))

    def plan_alone(self, make: Callable[[], T]) -> T:
        """Let one thread at a time make plans: each weight is packed once for all contexts."""
        if self._target is None:
            return holding(self.lock, make)
        return holding(self.lock, holding, self._target.lock, make)

    @exclusive
    def close(self) -> None:
        """Close the files and release the packed weights: no further context can be made.

        Contexts that have made their plan, by ``process`` or ``prepare``, can still be used; their
        memory is freed with the last of them.
        """
        self._is_closed = True
        self.packed.clear()
        self._file.close()
        if self.draft_adapter is not None:
            self.draft_adapter.close()
