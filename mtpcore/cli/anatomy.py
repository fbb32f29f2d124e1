"""What a model is made of, as plain data: files, tensors by role, ties, and what it needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mtpcore._ext._cpu import available_fetches, available_isas, fetch, isa
from mtpcore.backends.cpu.estimate import estimate_packed_bytes
from mtpcore.backends.cpu.states import slot_bytes_of
from mtpcore.cli.llama_cpp import judge_for_llama_cpp
from mtpcore.cross import find_drafter
from mtpcore.declarations.spec import TARGET, DrafterSpec
from mtpcore.discovery.companions import unread
from mtpcore.drafting.upstream import n_heads
from mtpcore.errors import MtpcoreError
from mtpcore.gguf import ModelFile, Tensor, read_tokenizer
from mtpcore.gguf.types import BLOCKS
from mtpcore.graph import GraphType, Program
from mtpcore.memory import PAGE, bytes_of_place, checkpoints_in, pages_for, slots_for
from mtpcore.runtime.fit import block_of
from mtpcore.runtime.model import Model
from mtpcore.sampling import read_recommended

__all__ = [
    "describe_file",
    "describe_model",
    "drafter_program",
    "plain_metadata",
    "role_of",
    "target_taps",
]

ROLES = ("embedding", "trunk", "norms", "output", "head")
_N_BATCH = 512  # rows at once, as contexts have it by default
_ONE_ARRAY = 4  # values of a metadata array that are shown


def role_of(tensor: str, n_layers: int | None) -> str:
    """Return what a tensor is for; ``n_layers`` is the trunk's, None where there is no trunk."""
    block = block_of(tensor)
    if n_layers is None or (block is not None and block >= n_layers):
        return "head"
    if "norm" in tensor:
        return "norms"
    if tensor.startswith("token_embd."):
        return "embedding"
    return "output" if tensor.startswith("output.") else "trunk"


def describe_model(
    model: Model,
    draft_model: Model | None = None,
    *,
    n_ctx: int,
    kv_dtype: str,
    checkpoint_bytes: int | None = None,
) -> dict[str, Any]:
    """Return everything that ``mtpcore inspect`` says.

    ``draft_model`` drafts from a file of its own; what it borrows lies in ``model``.
    """
    models = [model] if draft_model is None else [model, draft_model]
    drafters = [(model, spec) for spec in model.drafters]
    if draft_model is not None:
        drafters += [(draft_model, spec) for spec in draft_model.drafters_for_others]
    default = find_drafter(model, draft_model, "auto")
    guests = {f"{spec.name}_{spec.block.entries}" for _, spec in drafters if spec.block}
    guests |= {spec.name for _, spec in drafters if spec.adapter}
    return {
        "path": str(model.path),
        "error": None,
        "architecture": model.architecture,
        "files": [_file(path) for part in models for path in part.paths],
        "layout": model.file_layout,
        "trunk": {"name": model.spec.name, "plugin": model.spec.plugin} if model.spec else None,
        "hparams": _plain_hparams(model.hparams),
        "metadata": plain_metadata(model.metadata),
        "tokenizer": repr(model.tokenizer) if model.has_tokenizer else None,
        "chat_template": "tokenizer.chat_template" in model.metadata,
        "llama_cpp": _for_llama_cpp(model.architecture, model.metadata, model.tensors.values()),
        "sampling": _sampling(model.metadata),
        **_tensors(model.tensors.values(), lambda name: _role_in(model, name)),
        "unread": _unread(model),
        "drafters": [
            _drafter(part, spec) | {"path": str(part.path) if part is draft_model else None}
            for part, spec in drafters
        ],
        "default_drafter": default and default[1].name,
        "sidecars": [
            {
                "path": str(beside.path),
                "drafters": list(beside.drafters),
                "used": beside.used,
                "reason": beside.reason or None,
            }
            for beside in model.sidecars
        ],
        "plan": _plan(_programs(model, drafters), guests, n_ctx, kv_dtype, checkpoint_bytes),
        **_machine(),
    }


def describe_file(file: ModelFile, error: MtpcoreError) -> dict[str, Any]:
    """Return what can be said of a file that is no model here; ``error`` says why."""
    try:
        tokenizer = read_tokenizer(file.metadata, str(file.path))
    except MtpcoreError:
        tokenizer = None
    return {
        "path": str(file.path),
        "error": str(error),
        "architecture": file.architecture or None,
        "files": [_file(part.path) for part in file.files],
        "layout": None,
        "trunk": None,
        "hparams": {},
        "metadata": plain_metadata(file.metadata),
        "tokenizer": repr(tokenizer) if tokenizer else None,
        "chat_template": "tokenizer.chat_template" in file.metadata,
        "llama_cpp": _for_llama_cpp(file.architecture, file.metadata, file.tensors.values()),
        "sampling": _sampling(file.metadata),
        **_tensors(file.tensors.values(), lambda name: None),
        "unread": None,
        "drafters": [],
        "default_drafter": None,
        "sidecars": [],
        "plan": None,
        **_machine(),
    }


def _for_llama_cpp(
    architecture: str, metadata: Mapping[str, Any], tensors: Iterable[Tensor]
) -> dict[str, Any]:
    types = {tensor.name: tensor.type_name for tensor in tensors}
    return judge_for_llama_cpp(architecture or None, metadata, types)


def _sampling(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a text for which none are given, and which the file recommends."""
    recommended = read_recommended(metadata)
    return {
        "settings": recommended.defaults,
        "recommended": list(recommended.settings),
        "left_out": recommended.left_out,
    }


def _unread(model: Model) -> dict[str, Any] | None:
    """Return how much of a model's companion no graph reads."""
    companion = model.spec.companion if model.spec and model.parts else None
    if companion is None:
        return None
    beside = model.parts[1]
    names = unread(companion, beside)
    n_bytes = sum(beside.tensors[name].n_bytes for name in names)
    return {"path": str(beside.path), "tensors": len(names), "bytes": n_bytes}


def _file(path: Path) -> dict[str, Any]:
    return {"path": str(path), "bytes": path.stat().st_size}


def _machine() -> dict[str, Any]:
    return {
        "isa": {"used": isa(), "available": list(available_isas())},
        "fetch": {"used": fetch(), "available": list(available_fetches())},
    }


def plain_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata that JSON can say; long arrays as their size and first values."""
    return {key: _brief(value) for key, value in metadata.items()}


def _brief(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list):
        first = [_brief(item) for item in value[:_ONE_ARRAY]]
        return first if len(value) <= _ONE_ARRAY else {"length": len(value), "first": first}
    if isinstance(value, float) and not np.isfinite(value):
        return repr(value)
    return value


def _plain_hparams(hparams: Any) -> dict[str, Any]:
    """Return the numbers and texts; tables (of frequencies) stay out."""
    fields = {f: getattr(hparams, f) for f in getattr(hparams, "__struct_fields__", ())}
    plain: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, msgspec.Struct):
            plain[name] = _plain_hparams(value)
        elif value is None or isinstance(value, bool | int | str):
            plain[name] = value
        elif isinstance(value, float):
            plain[name] = _brief(value)
    return plain


def _role_in(model: Model, name: str) -> str:
    n_layers = model.hparams.n_layers if model.spec is not None else None
    return "head" if name in model.head_only else role_of(name, n_layers)


def _tensors(
    tensors: Iterable[Tensor], role: Callable[[str], str | None]
) -> dict[str, list[dict[str, Any]]]:
    """Return the tensors, and their bytes by role and type; None if they are not known."""
    listed: list[dict[str, Any]] = [
        {
            "name": tensor.name,
            "shape": list(tensor.shape),
            "type": tensor.type_name,
            "bytes": tensor.n_bytes if tensor.type in BLOCKS else None,
            "role": role(tensor.name),
        }
        for tensor in tensors
    ]
    sums: dict[tuple[Any, Any], dict[str, Any]] = {}
    for one in listed:
        key = one["role"], one["type"]
        row = sums.setdefault(key, {"role": key[0], "type": key[1], "tensors": 0, "bytes": None})
        row["tensors"] += 1
        if one["bytes"] is not None:
            row["bytes"] = (row["bytes"] or 0) + one["bytes"]
    order = {name: i for i, name in enumerate(ROLES)}
    rows = sorted(sums.values(), key=lambda row: (order.get(row["role"], 0), -(row["bytes"] or 0)))
    return {"roles": rows, "tensors": listed}


def _drafter(model: Model, spec: DrafterSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "plugin": spec.plugin,
        "shape": spec.shape,
        "variant_of": spec.variant_of,
        "limit": spec.limit,
        "heads": spec.heads.count,
        "acceptance": list(spec.acceptance),
        "taps": target_taps(spec),
        "graphs": ["draft", *(name for name, _ in spec.graphs)] if spec.build else [],
        "ties": [msgspec.to_builtins(use) for use in model.tie_report(spec)],
        "evidence": spec.evidence,
    }


def target_taps(spec: DrafterSpec) -> list[str]:
    """Return the taps of the target that a drafter reads."""
    return [tap for feed in spec.feeds if feed.src == "target" for tap in feed.taps]


def drafter_program(model: Model, name: str | None = None, graph: str = "") -> Program:
    """Return a drafter's graph of a type; by default the one with which it drafts.

    Raises
    ------
    MtpcoreError
        There is no drafter, or it has no such graph.
    """
    spec = model.find_drafter(name)
    return model.program(GraphType(graph or GraphType.DRAFT), drafter=spec)


Build = Callable[[], list[Program]]


def _programs(
    model: Model, drafters: Iterable[tuple[Model, DrafterSpec]]
) -> list[tuple[Model, str, Build]]:
    """Return what builds a graph, or one for each head, by the trunk's or the drafter's name.

    Each comes with the model whose weights it reads. Variants are left out.
    """
    programs: list[tuple[Model, str, Build]] = []
    if model.spec is not None:
        for graph in ("llm", *(name for name, _ in model.spec.graphs)):
            programs.append((model, graph, partial(_of_trunk, model, graph)))
    for source, spec in drafters:
        if spec.variant_of:
            continue
        if spec.shape != "proposer":
            programs.append((source, spec.name, partial(_heads, source, spec)))
        for graph, _ in spec.graphs:
            name = f"{spec.name}_{graph}"
            programs.append((source, name, partial(_further, source, spec, graph)))
    return programs


def _of_trunk(model: Model, graph: str) -> list[Program]:
    return [model.program(GraphType(graph))]


def _heads(model: Model, spec: DrafterSpec) -> list[Program]:
    heads = range(n_heads(spec))
    return [model.program(GraphType.DRAFT, drafter=spec, head=head) for head in heads]


def _further(model: Model, spec: DrafterSpec, graph: str) -> list[Program]:
    return [drafter_program(model, spec.name, graph)]


def _plan(
    built: Iterable[tuple[Model, str, Build]],
    guests: Collection[str],
    n_ctx: int,
    kv_dtype: str,
    checkpoint_bytes: int | None,
) -> dict[str, Any]:
    """Return the bytes that the CPU needs: weights as packed, what is kept of a sequence.

    That is keys and values, and of recurrent layers slots of a state and its log.

    What a model leaves in its mapped file is counted apart; what a drafter's file borrows is
    counted where it lies. What graphs that are ``guests`` in another's memory store is that one's.
    """
    parts: list[dict[str, Any]] = []
    counted: set[tuple[Path, str]] = set()
    for model, name, build in built:
        try:
            programs = build()
            weights = estimate_packed_bytes(programs, model.tensors, repack=model.repack)
        except MtpcoreError as error:
            parts.append({"role": name, "error": str(error)})
            continue
        own = programs if name not in guests else []  # the others' rows are counted once
        layers = [layer for program in own for layer in (*program.memory, *program.delivered)]
        slots = [slot_bytes_of(program.states) for program in programs]
        values = [(layer, bytes_of_place(layer, kv_dtype)) for layer in layers]
        places = {tensor: _place(model, tensor) for tensor in weights}
        parts.append(
            {
                "role": name,
                "weights": sum(n for t, n in weights.items() if places[t] not in counted),
                "mapped": sum(
                    model.tensors[t].n_bytes
                    for t, n in weights.items()
                    if not n and places[t] not in counted
                ),
                "shared": sum(n for t, n in weights.items() if places[t] in counted),
                "kv_per_token": sum(n for layer, n in values if not layer.window),
                "kv_per_sequence": sum(
                    pages_for(layer.window, 1, n_ctx, min(n_ctx, _N_BATCH)) * PAGE * n
                    for layer, n in values
                ),
                "slot": sum(slots),
                "states_per_sequence": sum(
                    slots_for(1, checkpoints_in(checkpoint_bytes, slot, 1)) * slot
                    for slot in slots
                    if slot
                ),
            }
        )
        counted |= set(places.values())
    return {
        "n_ctx": n_ctx,
        "kv_dtype": kv_dtype,
        "checkpoint_bytes": checkpoint_bytes,
        "parts": parts,
    }


def _place(model: Model, tensor: str) -> tuple[Path, str]:
    """Return the model file in which a weight lies, and its name there."""
    borrowed = tensor.startswith(TARGET) and model.target
    return (borrowed or model).path, tensor.removeprefix(TARGET)
