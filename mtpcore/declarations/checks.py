"""Checks of declarations: types of all fields, and rules between them.

Python does not check a struct's fields when a plugin fills it in; this does, at the door, so that
nothing after it has to.
"""

from __future__ import annotations

import re
import types
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from itertools import cycle
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

import msgspec
from msgspec.structs import fields

from mtpcore.declarations.backend import BackendSpec
from mtpcore.declarations.spec import (
    INPUTS,
    Block,
    Codebooks,
    DrafterSpec,
    Feed,
    Fit,
    Heads,
    ModelSpec,
    Noise,
    Tap,
    TreeShape,
)
from mtpcore.errors import MtpcoreError, PluginError, spell

__all__ = [
    "check_backend",
    "check_codebooks",
    "check_shape",
    "check_spec",
    "check_struct",
    "check_tree",
]

Matcher: TypeAlias = Callable[[Any, str], bool]
"""Says whether a value, found at a place, is of a type."""


@cache
def _fields(kind: type[msgspec.Struct]) -> list[tuple[str, Any, frozenset[type], Matcher]]:
    """Return name, type, plain classes and matcher of each field.

    Made once, as msgspec reads all annotations at each call.
    """
    return [(f.name, f.type, _plain(f.type), _matcher(f.type)) for f in fields(kind)]


def check_spec(spec: ModelSpec | DrafterSpec) -> None:
    """Check a declaration; see ``check_struct`` for structs that callers fill in.

    Raises
    ------
    PluginError
        Naming the field; ``where`` starts with the declaration's name.
    """
    try:
        check_struct(spec, type(spec).__name__)
        _check_names(spec)
        _check_feeds(spec)
        if isinstance(spec, DrafterSpec):
            _check_drafter(spec)
        else:
            _check_trunk(spec)
        _check_slots(spec)
    except PluginError as error:
        raise error.at(spell(spec.name)) from None


def check_backend(spec: BackendSpec) -> None:
    """Check the declaration of a backend; it is not imported.

    Raises
    ------
    PluginError
        Naming the field; ``where`` starts with the declaration's name.
    """
    try:
        check_struct(spec, type(spec).__name__)
        if not spec.name.isidentifier():
            raise PluginError("a name is an identifier", where="name", got=repr(spec.name))
        module, colon, name = spec.source.partition(":")
        if not (colon and name.isidentifier() and all(map(str.isidentifier, module.split(".")))):
            raise PluginError(
                "not where a class is", where="source", wanted="module:Class", got=repr(spec.source)
            )
    except PluginError as error:
        raise error.at(spell(spec.name)) from None


def check_struct(
    struct: msgspec.Struct, where: str, error: type[MtpcoreError] = PluginError
) -> bool:
    """Return True where all fields are of their types, those of structs inside too.

    Raises
    ------
    error
        Naming the field.
    """
    for name, hint, plain, matches in _fields(type(struct)):
        value = getattr(struct, name)
        if type(value) in plain:
            continue
        inside = f"{where}.{name}"
        if not matches(value, inside):
            raise error("wrong type", where=inside, wanted=_spell(hint), got=spell(value)[:80])
    return True


def _spell(hint: Any) -> str:
    if get_origin(hint) is Annotated:
        return str(hint.__metadata__[0].description)
    return (
        hint.__name__
        if isinstance(hint, type)
        else str(hint).replace("mtpcore.declarations.spec.", "")
    )


@cache
def _plain(hint: Any) -> frozenset[type]:
    """Return classes whose objects are all of a type: most values need no matcher."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return frozenset[type]().union(*map(_plain, get_args(hint)))
    if origin is Callable:
        return frozenset({types.FunctionType})
    if origin or hint is Any or issubclass(hint, msgspec.Struct):
        return frozenset()
    return frozenset({int, float} if hint is float else {hint})


@cache
def _matcher(hint: Any) -> Matcher:
    """Return the matcher of a type.

    Made once for each type, since declarations hold thousands of values. Structs inside are
    checked and raise their own error.
    """
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value, where: True
    if origin is Annotated:
        is_one = _matcher(args[0])
        return lambda value, where: is_one(value, where) and _in_bounds(value, hint)
    if origin is Literal:
        return lambda value, where: isinstance(value, str) and value in args
    if origin in (Union, types.UnionType):
        matchers = [_matcher(part) for part in args]
        return lambda value, where: any(matches(value, where) for matches in matchers)
    if origin is tuple:
        return _tuple_matcher(args)
    if origin is frozenset:
        is_one = _matcher(args[0])
        return lambda value, where: (
            isinstance(value, frozenset) and all(is_one(part, where) for part in value)
        )
    if origin is Callable:
        return lambda value, where: callable(value)
    if hint in (int, float):
        kinds = (int,) if hint is int else (int, float)
        return lambda value, where: isinstance(value, kinds) and not isinstance(value, bool)
    if issubclass(hint, msgspec.Struct):
        return lambda value, where: isinstance(value, hint) and check_struct(value, where)
    return lambda value, where: isinstance(value, hint)


def _in_bounds(value: Any, hint: Any) -> bool:
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError:
        return False
    return True


def _tuple_matcher(args: tuple[Any, ...]) -> Matcher:
    parts = [(_plain(part), _matcher(part)) for part in args if part is not Ellipsis]
    is_long = args[-1] is Ellipsis

    def matches(value: Any, where: str) -> bool:
        if not isinstance(value, tuple) or not (is_long or len(value) == len(parts)):
            return False
        for i, (item, (plain, is_one)) in enumerate(zip(value, cycle(parts), strict=False)):
            if type(item) not in plain and not is_one(item, f"{where}[{i}]"):
                return False
        return True

    return matches


_MEANT_OTHERWISE = ("auto", "draft_model", "lookup")
"""Names for the best drafter, for the trunk of a draft model, and for what every model has."""

_OF_ROLES = {
    "draft": re.compile(r"llm|target|head\d+"),
    "llm": re.compile(r"target|draft\d*(_.*)?"),
}
"""By the graph that ``build`` makes, names that further graphs may not have: a Cross has roles that
are called or spelled so."""


def _main(spec: ModelSpec | DrafterSpec) -> str:
    """Return the type of the graph that ``build`` makes."""
    return "draft" if isinstance(spec, DrafterSpec) else "llm"


def _spelled(name: str) -> str:
    """Return a name as one of ours would be spelled, so that none looks like it."""
    return name.lower().replace("-", "_")


def _check_names(spec: ModelSpec | DrafterSpec) -> None:
    if not spec.name.replace("-", "_").isidentifier():
        raise PluginError("a name is an identifier", where="name", got=repr(spec.name))
    if isinstance(spec, DrafterSpec) and _spelled(spec.name) in _MEANT_OTHERWISE:
        raise PluginError(
            "a name that has a meaning of its own where users choose a drafter",
            where="name",
            wanted="another one",
            got=repr(spec.name),
        )
    main = _main(spec)
    types_of_graphs = [main, *(name for name, _ in spec.graphs)]
    for name in types_of_graphs:
        is_taken = name != main and _OF_ROLES[main].fullmatch(name)
        if not name.isidentifier() or is_taken or types_of_graphs.count(name) > 1:
            raise PluginError(
                "types of graphs have identifiers of their own", where="graphs", got=repr(name)
            )


def _check_feeds(spec: ModelSpec | DrafterSpec) -> None:
    graphs = dict(spec.graphs)
    for (graph, slot), count in Counter((f.graph, f.slot) for f in spec.feeds).items():
        if count > 1:
            raise PluginError("two feeds of one slot", where=f"slot {slot!r} of {graph or 'build'}")
    sources = {"target", _main(spec), *graphs}
    for feed in spec.feeds:
        where = f"feed of slot {feed.slot!r}"
        for name, known in ((feed.graph, {"", *graphs}), (feed.src, sources)):
            if name not in known:
                raise PluginError(
                    "a feed names a graph that is not declared",
                    where=where,
                    wanted=", ".join(sorted(known - {""})),
                    got=repr(name),
                )
        if not feed.taps and not feed.width:
            raise PluginError(
                "a feed without taps",
                where=where,
                wanted="taps=, or width= and recycle= of a state that begins with zeros",
            )
        for tap in feed.taps:
            point, _, layer = tap.partition(":")
            listed = point == "layer_input" and layer and not layer.removeprefix("-").isdigit()
            if not listed:  # otherwise the layers stand in the metadata
                Tap.parse(tap)


def _check_slots(spec: ModelSpec | DrafterSpec) -> None:
    for feed in spec.feeds:
        is_row = feed.slot == "embeddings" and isinstance(spec, ModelSpec) and feed.graph
        if feed.slot in INPUTS and not is_row:
            raise PluginError(
                "the name of what a graph reads of every batch",
                where=f"feed of slot {feed.slot!r}",
                wanted=f"a slot of another name than {', '.join(INPUTS)}",
                got=repr(feed.slot),
            )


def _check_trunk(spec: ModelSpec) -> None:
    if not spec.fit.architectures:
        raise PluginError("a trunk names its architectures", where="fit.architectures")
    if spec.companion is not None:
        _check_pattern(spec.companion.file, "companion.file")
    for feed in spec.feeds:
        if feed.width or not feed.taps:
            raise PluginError(
                "a trunk recycles nothing: its slots are as wide as their taps",
                where=f"feed of slot {feed.slot!r}",
                wanted="taps=, and no width=",
            )
        if feed.missing == "zeros" and feed.pairing == "whole-sequence":
            raise PluginError(
                "a whole sequence lacks no row",
                where=f"feed of slot {feed.slot!r}",
                wanted="missing='refused'",
            )
        if bool(feed.graph) != (feed.src == _main(spec)):
            raise PluginError(
                "a further graph feeds the one that writes texts, or is fed by it",
                where=f"feed of slot {feed.slot!r}",
                got=f"src={feed.src!r}, graph={feed.graph!r}",
            )
    if spec.encoder and spec.encoder not in dict(spec.graphs):
        raise PluginError(
            "prompts are read by a graph that is declared",
            where="encoder",
            wanted=", ".join(name for name, _ in spec.graphs) or "one in graphs",
            got=repr(spec.encoder),
        )


def _check_pattern(pattern: str, where: str) -> None:
    """Raise PluginError for a pattern of names that would match every file, or none."""
    if pattern.count("*") != 1 or "/" in pattern or len(pattern) < len("*.gguf-"):
        raise PluginError(
            "no pattern of a sidecar's name",
            where=where,
            wanted="one '*' for the model's name, and what sets the file apart, as mtp-*.gguf",
            got=repr(pattern),
        )


def _check_drafter(spec: DrafterSpec) -> None:
    check_shape(spec)
    for feed in spec.feeds:
        _check_pairing(feed, spec)
    for pattern in spec.fit.sidecars:
        _check_pattern(pattern, "fit.sidecars")
    if spec.shape == "proposer":
        _check_proposer(spec)
    elif spec.adapter:
        _check_adapter(spec)
    elif spec.build is None:
        raise PluginError(
            "only proposers and adapters draft without a graph",
            where="build",
            wanted=f"a function, for the shape {spec.shape!r}",
        )
    has_graph = spec.shape != "proposer" and not spec.adapter
    if has_graph and not spec.standalone and not spec.fit.tensors:
        raise PluginError("a head names tensors by which it is found", where="fit.tensors")
    if spec.standalone and not (spec.fit.architectures and spec.hparams):
        raise PluginError(
            "a file of its own has an architecture and hyper-parameters of its own",
            where="standalone",
            wanted="fit.architectures and hparams",
        )
    if spec.checkpoint and not spec.standalone and not spec.checkpoint.heads:
        raise PluginError(
            "a head's checkpoint names a tensor by which heads are counted",
            where="checkpoint.heads",
        )
    if spec.layouts and not spec.standalone:
        raise PluginError(
            "only a drafter in a file of its own has further layouts", where="layouts"
        )
    if spec.limit < 1:
        raise PluginError(
            "the longest draft has a token", where="limit", wanted=">= 1", got=spec.limit
        )
    low, high = spec.acceptance
    if not 0 <= low <= high <= 1:
        raise PluginError(
            "rates rise within 0..1", where="acceptance", wanted="(low, high)", got=spec.acceptance
        )
    _check_heads(spec)
    if spec.shared_memory and (spec.shape != "chain" or spec.heads != Heads() or spec.graphs):
        raise PluginError(
            "a drafter that reads the target's memory is one graph that drafts a chain",
            where="shared_memory",
            got=f"shape {spec.shape!r}, heads {spec.heads}, {len(spec.graphs)} further graphs",
        )
    for feed in spec.feeds:
        _check_width(feed, spec)
    for tie in spec.ties:
        if not tie.candidates:
            raise PluginError("a tie without candidates", where=tie.tensor)


def _check_heads(spec: DrafterSpec) -> None:
    """Raise PluginError where heads that read the target's rows alone hand on others."""
    heads = spec.heads
    if heads.hidden_from == "previous":
        return
    if heads.order == "repeated":
        raise PluginError(
            "a head that is repeated is fed what the step before made",
            where="heads.hidden_from",
            wanted="'previous', or order='each-step'",
            got="'target'",
        )
    counts_blocks = any("{n}" in name for name in spec.fit.tensors)
    are_several = isinstance(heads.count, int) and heads.count > 1 and not counts_blocks
    for feed in spec.feeds:
        if feed.recycle and (are_several or not feed.taps):
            raise PluginError(
                "heads that all read the target's rows hand on none",
                where=f"feed of slot {feed.slot!r}",
                wanted="no recycle=",
                got=repr(feed.recycle),
                fix="leave it out, or let each head read the one before: hidden_from='previous'",
            )


_OF_GRAPHS = ("build", "graphs", "ties", "heads", "vocabulary", "hparams", "standalone")
"""Fields that say how graphs are made, and in which file their weights lie."""


def _idle(spec: DrafterSpec, names: Iterable[str]) -> list[str]:
    """Return those of these fields that are declared, and of the fit what only a file has."""
    plain = DrafterSpec(name=spec.name, fit=Fit())
    idle = [name for name in names if getattr(spec, name) != getattr(plain, name)]
    return idle + [f"fit.{name}" for name in ("targets", "sidecars") if getattr(spec.fit, name)]


def _check_adapter(spec: DrafterSpec) -> None:
    """Raise PluginError where an adapter that drafts declares what the target's graph decides."""
    if spec.block is None:
        raise PluginError(
            "an adapter drafts a block", where="shape", wanted="'block'", got=repr(spec.shape)
        )
    idle = _idle(spec, (*_OF_GRAPHS, "feeds", "shared_memory", "checkpoint", "layouts"))
    plain = Block(size=0, mask=0)
    idle += [
        f"block.{name}"
        for name in ("from_pending", "entries", "post_head", "passes")
        if getattr(spec.block, name) != getattr(plain, name)
    ]
    if idle:
        raise PluginError(
            "an adapter drafts with its target's graph: nothing reads these fields",
            where=", ".join(idle),
            fix="leave them out, or adapter",
        )


def _check_proposer(spec: DrafterSpec) -> None:
    """Raise PluginError where a proposer declares what graphs have, or reads what it cannot."""
    if idle := _idle(spec, (*_OF_GRAPHS, "schedule", "adapter")):
        raise PluginError(
            "a proposer has no graph, and no file of its own: nothing reads these fields",
            where=", ".join(idle),
            fix="leave them out, or declare the shape of a graph",
        )
    if any(f.src != "target" or f.recycle or f.pairing != "same-token" for f in spec.feeds):
        raise PluginError(
            "a proposer reads rows of the target, row i with token i, and recycles them itself",
            where="feeds",
            wanted='Feed(slot=..., taps=..., pairing="same-token")',
        )


def _check_pairing(feed: Feed, spec: DrafterSpec) -> None:
    """Raise PluginError where a drafter is fed rows that it cannot have."""
    where = f"feed of slot {feed.slot!r}"
    if feed.pairing == "whole-sequence":
        raise PluginError(
            "only trunks are fed whole sequences",
            where=where,
            wanted="next-token, same-token",
            got=repr(feed.pairing),
        )
    drafts = spec.shape != "proposer" and not feed.graph
    if drafts and feed.taps and feed.pairing == "same-token":
        raise PluginError(
            "the graph that drafts reads the pending token, which has no row yet",
            where=where,
            wanted="next-token",
            got=repr(feed.pairing),
            fix="feed token p with row p - 1, or a further graph with row p: Feed(graph=...)",
        )
    if feed.missing != "refused":
        raise PluginError(
            "a drafter reads rows of every token",
            where=where,
            wanted="missing='refused'",
            got=repr(feed.missing),
        )


def _check_width(feed: Feed, spec: DrafterSpec) -> None:
    """Raise PluginError where a feed's width is that of no recycled row."""
    if not feed.width:
        return
    is_step = spec.shape in ("chain", "tree") and not feed.graph and bool(feed.recycle)
    is_step &= spec.shared_memory is None
    has_heads = spec.heads.order == "each-step" and spec.heads.hidden_from == "previous"
    if not is_step or (feed.taps and not has_heads):
        raise PluginError(
            "a width is that of recycled rows",
            where=f"feed of slot {feed.slot!r}",
            wanted="recycle=, and either no taps or heads for each step that read the previous one",
            got=f"width={feed.width!r}, recycle={feed.recycle!r}, shape {spec.shape!r}",
        )


def check_codebooks(codebooks: object, spec: ModelSpec) -> Codebooks:
    """Return codebooks that a trunk declares.

    Raises
    ------
    PluginError
        They are none, or not those of the trunk's graphs.
    """
    if not isinstance(codebooks, Codebooks):
        raise PluginError("no Codebooks", where="codebooks", got=spell(codebooks))
    check_struct(codebooks, "Codebooks")
    count, size, most, end = codebooks.count, codebooks.size, codebooks.n_first, codebooks.end
    is_sound = 2 <= count <= 1 << 10 and 2 <= size <= most <= 1 << 24
    last = most if codebooks.n_end == 1 else size
    if not is_sound or not 1 <= codebooks.n_end <= count or not 0 <= (end or 0) < last:
        raise PluginError("codebooks of impossible sizes", where="codebooks", got=repr(codebooks))
    fed = {(feed.graph, feed.slot) for feed in spec.feeds}
    if codebooks.graph not in dict(spec.graphs) or (codebooks.graph, "embeddings") not in fed:
        raise PluginError(
            "the graph that chooses codes is not declared, or nothing feeds it",
            where=f"codebooks, graph {codebooks.graph!r}",
            wanted="one of graphs=, and Feed(graph=..., slot='embeddings', src='llm', "
            "pairing='same-token')",
        )
    return codebooks


def check_shape(spec: DrafterSpec) -> None:
    """Raise PluginError where a drafter's fields are not those of its shape."""
    for shape, value in (("tree", spec.tree), ("block", spec.block), ("proposer", spec.proposer)):
        if shape == "tree" and spec.schedule is not None:
            continue  # what it builds may branch, whatever its shape
        if (spec.shape == shape) != (value is not None):
            raise PluginError(
                f"the field {shape!r} goes with the shape {shape!r}, and only with it",
                where=shape,
                got=f"shape {spec.shape!r}, {shape}={value!r}",
            )
    if spec.tree is not None:
        check_tree(spec.tree)
    _check_block(spec)


def _check_block(spec: DrafterSpec) -> None:
    """Raise PluginError where a block's graphs are not declared, or its masks are fed nothing."""
    block = spec.block or Block(size=0, mask=0)
    inner = [name for name in (block.entries, block.post_head) if name]
    if len({*inner} & {name for name, _ in spec.graphs}) < len(inner):
        raise PluginError(
            "graphs of a block are declared, and of one purpose each",
            where="block",
            wanted=", ".join(name for name, _ in spec.graphs) or "further graphs",
            got=f"entries={block.entries!r}, post_head={block.post_head!r}",
        )
    if block.passes != 0 and not block.post_head:
        raise PluginError(
            "passes are those of a post-head",
            where="block.passes",
            wanted="post_head=",
            got=repr(block.passes),
        )
    if isinstance(block.mask, Noise) and not spec.adapter:
        raise PluginError(
            "noise stands for masks where an adapter drafts",
            where="block.mask",
            wanted="the id of the mask token",
            got=repr(block.mask),
        )
    if spec.block and spec.heads != Heads():
        raise PluginError("a block is drafted by one head", where="heads", got=repr(spec.heads))
    for feed in spec.feeds:
        where = f"feed of slot {feed.slot!r}"
        if spec.block and feed.recycle:
            raise PluginError("a block has no later steps", where=where, got=f"{feed.recycle!r}")
        if bool(feed.mask) != (spec.block is not None and not feed.graph):
            raise PluginError(
                "rows of masks, and they alone, are fed a tensor",
                where=where,
                wanted="mask= of a slot of the graph that drafts a block",
                got=f"mask={feed.mask!r}",
            )
        if spec.block and (feed.src == "draft") != (feed.graph == block.post_head != ""):
            raise PluginError(
                "the graph that drafts is read by a post-head, which reads nothing else",
                where=where,
                got=f"src={feed.src!r}, graph={feed.graph!r}, post_head={block.post_head!r}",
            )


def check_tree(tree: TreeShape) -> None:
    """Raise PluginError where a tree is neither fixed nor grown."""
    check_struct(tree, "TreeShape")
    grown = (tree.depth, tree.width, tree.n_nodes)
    if tree.paths:
        fits = not any(grown) and all(path and min(path) >= 0 for path in tree.paths)
    else:
        fits = min(grown) >= 1
    if not fits:
        raise PluginError(
            "a tree has paths of ranks from 0 on, or depth, width and n_nodes from 1 on",
            where="tree",
            got=repr(tree),
        )
