"""Conversion of a published checkpoint to a model file."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mtpcore.boundary.paths import take_path
from mtpcore.boundary.sizes import Count
from mtpcore.conversion.around import choose_response_template
from mtpcore.conversion.changed import change_tensors
from mtpcore.conversion.declared import ask
from mtpcore.conversion.family import (
    Family,
    canonical_names,
    find_family,
    further_folders,
    open_config,
    read_config,
)
from mtpcore.conversion.metadata import (
    family_metadata,
    general_metadata,
    held_metadata,
    table_metadata,
)
from mtpcore.conversion.mixes import Described, MixName
from mtpcore.conversion.output import Report, write_checked
from mtpcore.conversion.parts import MTP, check_parts
from mtpcore.conversion.peft import read_saved
from mtpcore.conversion.plan import ConversionPlan, ExpertCount, PlannedTensor, make_plan
from mtpcore.conversion.published import PublishedTensor, check_folder, convert_json, read_tensors
from mtpcore.conversion.tokenizer import tokenizer_metadata, with_control_tokens
from mtpcore.conversion.types import TypeChoice
from mtpcore.conversion.unread import refuse_unread
from mtpcore.conversion.values import check_scales, read_values
from mtpcore.declarations.checkpoint import Checkpoint, Config
from mtpcore.discovery.companions import companion_path
from mtpcore.discovery.registry import Registry, registry
from mtpcore.errors import ModelFileError
from mtpcore.gguf import StreamedFile, StreamedTensor
from mtpcore.gguf.header import MetadataValue
from mtpcore.gguf.types import PLAIN, block_type
from mtpcore.gguf.writer import encode

__all__ = ["convert"]

log = logging.getLogger("mtpcore")
_READ = (".json", ".safetensors", ".jinja", ".md", ".txt")
_TYPE_OF = {dtype: kind for kind, dtype in PLAIN.items()}


def convert(
    folder: str | PathLike[str],
    path: str | PathLike[str],
    *,
    outtype: MixName = "f16",
    mtp_type: str | None = None,
    mtp: MTP = "keep",
    target: str | PathLike[str] | None = None,
    ignore: Collection[str] = (),
    response_template: str | None = None,
    lora: Sequence[str | PathLike[str]] = (),
    plugins: Registry | None = None,
    report: Report | None = None,
) -> dict[str, str]:
    """Make a model file of a published checkpoint, and the file beside it where models need two.

    Tensors are read, changed and written one after the other: memory is bounded by the largest.

    Parameters
    ----------
    folder : path
        With ``config.json``, ``*.safetensors`` and a tokenizer: ``tokenizer.json``, or what the
        families have in its place.
    path : path
        The GGUF file to write; replaced where it exists. So is its companion, in the same folder,
        which is called after it: ``mmproj-model.gguf`` for ``model.gguf``.
    outtype : str
        Type of matrices, and as ``q4_k_m`` a mix of them: a key of ``conversion.MIXES``.
    mtp_type : str, optional
        Type of the heads' matrices, which are all in a drafter with a file of its own, or ``mix``:
        as ``outtype`` has them. Default: q8_0, or a type of floats as
        ``outtype``.
    mtp : str
        ``keep`` trunk and heads, ``only`` the heads (with the tables that they share with the
        trunk), or ``drop`` the heads.
    target : path, optional
        Folder of the target's checkpoint, for a drafter alone: its tokenizer is taken, what the
        drafter's configuration does not say, and the tables that heads share with a trunk.
    ignore : collection of str
        Settings in ``config.json`` that are taken as null, by name or path: what the caller knows
        to change nothing, where the conversion would refuse it.
    response_template : str, optional
        How answers are parsed, as JSON, in place of what ``tokenizer_config.json`` says of it;
        ``family``: as the plugin of the family declares it; ``none``: the file does not say it.
    lora : sequence of path
        Folders of adapters that PEFT saved, which are merged into the tensors, one after the other.
    plugins : Registry, optional
        The plugins to ask; default: all that are installed.
    report : callable, optional
        Called as ``report(n_bytes, total)`` while the data is written.

    Returns
    -------
    dict of str to str
        The checkpoint's tensors that the file does without, each with the reason.

    Raises
    ------
    ModelFileError
        An architecture that no plugin declares, settings that the file would not hold, missing or
        unknown tensors (all are named), a tensor of the wrong shape, a malformed file, an adapter
        that does not fit. No file is left behind.
    PluginError
        As ``registry``.
    """
    folder, path = take_path(folder), take_path(path)
    target = None if target is None else take_path(target)
    known = registry() if plugins is None else plugins
    for given in (folder, *([target] if target else [])):
        check_folder(given)
    values = read_config(folder, ignore)
    inner = further_folders(values, folder, known)
    _refuse_own_file(path, folder, target, *(folder / name for name in inner))
    published = _read_all(folder, values, inner)
    family = find_family(values, published, folder, known)
    _check_options(family, folder, mtp, target)
    if family.main.is_beside_target and target is not None:
        published |= _shared_tables(family.main, target)
    if mtp != "drop" and family.n_declared not in (0, family.n_heads):
        log.warning(
            "%s: the configuration counts %d heads, the tensors are of %d: the model file gets %d",
            folder,
            family.n_declared,
            family.n_heads,
            family.n_heads,
        )
    config = open_config(
        family.main,
        values,
        folder,
        n_drafter_blocks=0 if mtp == "drop" or family.standalone else family.n_heads,
        n_own_heads=family.n_heads if family.standalone else 0,
        target=_target_config(target),
    )
    tables = [t for t in (family.main, family.heads if mtp != "drop" else None) if t]
    metadata = family_metadata(family.architecture, tables, config)
    n_experts = convert_json(
        metadata.get(f"{family.architecture}.expert_count", 0),
        ExpertCount,
        f"{config.file}: number of experts",
    )
    tensors = {
        spelled: published[name]
        for spelled, name in canonical_names(family.main, published).items()
    }
    saved = [read_saved(take_path(adapter)) for adapter in lora]
    tensors = change_tensors(saved, family, tensors, config)
    held, taken = held_metadata(family.main, config, tensors)
    tensors = {name: tensor for name, tensor in tensors.items() if name not in taken}
    plan = make_plan(family, config, tensors, n_experts, mtp)
    check_scales(plan, config)
    first_head = None if family.standalone else config.n_layers
    choice = TypeChoice(outtype, mtp_type, first_head, family.min_types, family.head_min_types)
    tokens = _tokenizer(family, config, plan, folder, target)
    if response_template is not None:
        spec = known.architectures.get(family.architecture)
        tokens = choose_response_template(tokens, response_template, spec, family.architecture)
    general = general_metadata(folder, plan.tensors, choice.file_type)
    streamed: dict[bool, list[StreamedTensor]] = {}
    for is_beside in (False, True):
        own = [tensor for tensor in plan.tensors if tensor.is_beside == is_beside]
        kinds = _types(own, choice, family.architecture, metadata)
        streamed[is_beside] = [_streamed(one, plan, config, kinds[one.name]) for one in own]
    merged = {**general, **tokens, **metadata, **held}
    model = StreamedFile(path, family.architecture, merged, streamed[False])
    companion = _companion(family, config, path, general, streamed[True])
    refuse_unread(family.tables, config)
    write_checked(model, companion, known, report)
    if family.main.note:
        log.warning("%s: %s", path, family.main.note)
    return plan.left_out


def _read_all(
    folder: Path, values: Mapping[str, Any], inner: Sequence[str]
) -> dict[str, PublishedTensor]:
    """Return the tensors of a checkpoint, and those of folders inside it as ``folder/name``."""
    published = read_tensors(folder, values.get("transformers_weights"))
    for name in inner:
        for tensor in read_tensors(folder / name).values():
            called = f"{name}/{tensor.name}"
            published[called] = msgspec.structs.replace(tensor, name=called)
    return published


def _shared_tables(main: Checkpoint, target: Path) -> dict[str, PublishedTensor]:
    """Return the tensors of a target's checkpoint that its heads share with it."""
    wanted = {rename.source for rename in main.tensors}
    tensors = read_tensors(target, read_config(target).get("transformers_weights"))
    spelled = canonical_names(main, tensors)
    return {name: tensors[name] for one, name in spelled.items() if one in wanted}


def _companion(
    family: Family,
    config: Config,
    path: Path,
    general: Mapping[str, MetadataValue],
    tensors: Sequence[StreamedTensor],
) -> StreamedFile | None:
    """Return the file beside the model's; None if the family has none."""
    if family.companion is None or family.main.companion is None:
        return None
    own = table_metadata(family.architecture, family.main.companion, config)
    return StreamedFile(
        companion_path(family.companion, path),
        family.companion.architecture,
        {**general, "general.type": "mmproj", **own},
        tensors,
    )


def _refuse_own_file(path: Path, *folders: Path | None) -> None:
    """Raise where the file to write is one of those that are read."""
    for folder in folders:
        if folder is None or path.suffix not in _READ or not os.path.exists(path):
            continue
        if os.path.samefile(path.parent, folder):
            raise ModelFileError(
                "the file to write is one of the checkpoint",
                where=str(path),
                fix="give another name, as model.gguf",
            )


def _check_options(family: Family, folder: Path, mtp: MTP, target: Path | None) -> None:
    if family.is_drafter and target is None:
        raise ModelFileError(
            "a drafter alone takes its target's tokenizer",
            where=str(folder),
            fix="give the folder of the target's checkpoint: --target FOLDER",
        )
    if not family.is_drafter and target is not None:
        raise ModelFileError(
            "only a drafter alone has a target",
            where=str(folder),
            fix="leave --target out",
        )
    check_parts(mtp, str(folder), standalone=family.is_drafter, has_heads=family.n_heads > 0)


def _target_config(target: Path | None) -> Config | None:
    if target is None:
        return None
    values = read_config(target)
    inner = values.get("text_config")
    return Config(
        {**values, **inner} if isinstance(inner, dict) else values, str(target / "config.json")
    )


def _tokenizer(
    family: Family, config: Config, plan: ConversionPlan, folder: Path, target: Path | None
) -> dict[str, MetadataValue]:
    source = config if config.target is None else config.target
    special = family.main.special_tokens
    if callable(special):
        special = ask(special, config, what="no special tokens", where=config.file)
    n_vocab = source.get("text_vocab_size", "vocab_size", type=Count)
    tables = [tensor.shape[0] for tensor in plan.tensors if tensor.name == "token_embd.weight"]
    if n_vocab is not None and tables and n_vocab > tables[0]:  # before that many texts are made
        raise ModelFileError(
            "the tokenizer has more tokens than the model has rows",
            where=f"{source.file}: vocab_size",
            wanted=f"at most {tables[0]}",
            got=n_vocab,
            fix="take config.json from the published model",
        )
    tokens = tokenizer_metadata(folder if target is None else target, n_vocab, special)
    if family.main.more_tokens is None:
        return tokens
    of, most = family.main.more_tokens, max(tables, default=0)
    what = "no further tokens"
    more = ask(lambda: [*islice(of(config), most + 1)], what=what, where=config.file)
    return tokens | with_control_tokens(tokens, more)


def _types(
    planned: Sequence[PlannedTensor],
    choice: TypeChoice,
    architecture: str,
    metadata: Mapping[str, MetadataValue],
) -> dict[str, int]:
    """Choose the types of tensors; integers keep theirs, and blocks that were made."""
    kinds, floats = {}, []
    for tensor in planned:
        dtype = tensor.dtype.newbyteorder("<")
        if (made := block_type(tensor.rename.blocks)) is not None:
            kinds[tensor.name] = made
        elif dtype.kind == "f":
            kind = choice.published_type(tensor.name, tensor.shape)
            floats.append(Described(tensor.name, tensor.shape, kind))
        elif dtype in _TYPE_OF:
            kinds[tensor.name] = _TYPE_OF[dtype]
        else:
            raise ModelFileError(
                "a model file has no such type",
                where=f"tensor {tensor.name!r}",
                wanted="I8, I16, I32, I64",
                got=dtype.name,
                fix="let the plugin change the tensor to one of these types",
            )
    return kinds | choice.choose(floats, architecture, metadata)


def _streamed(
    planned: PlannedTensor, plan: ConversionPlan, config: Config, kind: int
) -> StreamedTensor:
    def blocks() -> Iterator[np.ndarray]:
        n_infinite = 0
        for values in read_values(planned, plan, config):
            with np.errstate(over="ignore"):
                blocks, _ = encode(planned.name, values, kind)
            if blocks.dtype == np.float16:
                n_infinite += int(np.isinf(blocks).sum() - np.isinf(values).sum())
            yield blocks
        if n_infinite:
            log.warning("%s: %d values are too large for F16", planned.name, n_infinite)

    return StreamedTensor(planned.name, planned.shape, kind, blocks)
