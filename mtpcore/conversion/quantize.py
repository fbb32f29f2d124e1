"""From a model file to one with other tensor types, or with a part of its tensors."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from gguf import GGML_QUANT_VERSION

from mtpcore.backends.threads import default_threads
from mtpcore.backends.workers import Workers
from mtpcore.boundary.arguments import expect, read
from mtpcore.boundary.paths import take_path
from mtpcore.conversion.importance import Importance, read_importance
from mtpcore.conversion.mixes import Described, MixName, file_order, is_of_output
from mtpcore.conversion.output import Report, write_checked
from mtpcore.conversion.parts import MTP, check_parts, left_out_of
from mtpcore.conversion.types import TensorTypes, TypeChoice
from mtpcore.discovery.companions import companion_path, unread
from mtpcore.discovery.loading import find_model, load_model
from mtpcore.discovery.registry import Registry, registry
from mtpcore.errors import ModelFileError
from mtpcore.gguf import ModelFile, StreamedFile, StreamedTensor, Tensor
from mtpcore.gguf.adapter import load_adapter
from mtpcore.gguf.header import MetadataValue, StoredValue, stored_metadata
from mtpcore.gguf.merged_adapters import Merging, pieces_of
from mtpcore.gguf.splitting import part_keys, part_path, split_prefix
from mtpcore.gguf.tensor import MappedFile
from mtpcore.gguf.types import BLOCKS, is_float, type_name
from mtpcore.gguf.writer import encode
from mtpcore.runtime.fit import block_of
from mtpcore.runtime.model import Model

__all__ = ["Retyped", "quantised_types", "quantize"]

log = logging.getLogger("mtpcore")

_THREADS = Annotated[int, msgspec.Meta(ge=1, le=1024, description="1..1024")]
_PIECE = 1 << 18  # values that a thread converts at once


class Retyped(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor, and what ``quantize`` makes of it.

    Attributes
    ----------
    name : str
    shape : tuple of int
        Outermost axis first.
    before, after : str
        Names of types.
    n_bytes : int
        Of the tensor in the new file.
    """

    name: str
    shape: tuple[int, ...]
    before: str
    after: str
    n_bytes: int


def quantize(
    source: str | PathLike[str],
    path: str | PathLike[str],
    *,
    outtype: MixName,
    mtp_type: str | None = None,
    mtp: MTP = "keep",
    types: TensorTypes | None = None,
    importance: str | PathLike[str] | None = None,
    override: dict[str, MetadataValue | None] | None = None,
    keep_split: bool = False,
    adapters: Sequence[tuple[str | PathLike[str], float]] = (),
    threads: int | None = None,
    plugins: Registry | None = None,
    report: Report | None = None,
) -> dict[str, str]:
    """Write a model file's tensors in other types, a piece at a time.

    With ``mtp_type="mix"``, what llama.cpp's quantiser makes of the same file, byte for byte: see
    ``conversion.mixes``, and ``_ext/c/encode`` for the searches for scales.

    Parameters
    ----------
    source : path
        A GGUF file (of a split one the first part), or ``demo``.
    path : path
        The GGUF file to write; replaced where it exists. The companion of a model that has one is
        written beside it, as ``convert`` does; what is in it besides the model keeps its type.
    outtype : str
        Type of matrices, and as ``q4_k_m`` a mix of them: a key of ``conversion.MIXES``.
    mtp_type : str, optional
        Type of the heads' matrices, which are all in a drafter with a file of its own, or ``mix``:
        as ``outtype`` has them. Default: q8_0, or as ``outtype`` where that is a type of floats.
    mtp : str
        ``keep`` what the file holds, ``only`` the heads (with the tables that they share with the
        trunk), or ``drop`` the heads.
    types : TensorTypes, optional
        Types of some matrices.
    importance : path, optional
        An importance matrix of llama.cpp, as GGUF or as it was before.
    override : dict, optional
        Metadata that replaces the file's, or comes to it; None: the new file has no such key.
    keep_split : bool
        Whether to write a split model in parts, each with the tensors that it has: ``path`` is what
        they are called before their numbers.
    adapters : sequence of (path, float)
        Adapters that are merged into the model, with their scales.
    threads : int, optional
        Default: as many as contexts have.
    plugins : Registry, optional
        The plugins to ask; default: all that are installed.
    report : callable, optional
        Called as ``report(n_bytes, total)`` while the data is written.

    Returns
    -------
    dict of str to str
        The tensors that the new file does without, each with the reason.

    Raises
    ------
    ModelFileError
        As ``load_model``; a type that cannot be read; a part that the file does not hold; an
        importance matrix that is of another model; both paths are the same file. No file is left
        behind.
    """
    known = registry() if plugins is None else plugins
    source, path = find_model(source), take_path(path)
    weights = None if importance is None else read_importance(take_path(importance))
    n_threads = default_threads() if threads is None else threads
    n_threads = read(
        n_threads, _THREADS, "number of threads", where="threads", error=ModelFileError
    )
    more = dict(expect(override or {}, dict, "metadata", where="override", error=ModelFileError))
    with Workers(n_threads) as workers, load_model(source, sidecars=False, plugins=known) as model:
        keep_split, n_parts = _keeps_split(keep_split, model, mtp), len(model.paths)
        paths = [path]
        if keep_split:
            paths = [part_path(split_prefix(path), i, n_parts) for i in range(n_parts)]
        for written in paths:
            _refuse_own_file(model, written)
        left_out, choice = _choose(model, source, outtype, mtp_type, mtp, types, weights)
        own = model.parts[0] if model.parts else model
        metadata = _metadata(own, model, mtp) | _stamp(choice, weights)
        metadata = {key: value for key, value in metadata.items() if key not in more}
        metadata |= {key: value for key, value in more.items() if value is not None}
        opened = [(load_adapter(one), scale) for one, scale in adapters]
        merging = Merging(opened, own.tensors, model.architecture) if opened else None
        writing = _Writing(choice, weights, workers, merging)
        kept = [tensor for name, tensor in own.tensors.items() if name not in left_out]
        streamed = writing.retype(kept, model.architecture, own.metadata, in_order=keep_split)
        if keep_split:
            first, *further = _in_parts(model, paths, metadata, streamed)
            write_checked(first, None, known, report, further=further)
        else:
            whole = StreamedFile(path, model.architecture, metadata, streamed)
            write_checked(whole, _companion(model, path, writing), known, report)
    return left_out


def _keeps_split(asked: bool, model: Model, mtp: MTP) -> bool:
    """Say whether parts are written; a model in one file has none to keep.

    Raises
    ------
    ModelFileError
        They cannot be kept.
    """
    if not asked or len(model.paths) == 1:
        return False
    if mtp != "keep" or model.parts:
        raise ModelFileError(
            "parts are kept where all of a model in one split file is written",
            where=str(model.path),
            got="a model with a companion" if model.parts else f"mtp={mtp!r}",
            fix="leave --keep-split (keep_split=True) out, and split the new file",
        )
    return True


def _in_parts(
    model: Model,
    paths: Sequence[Path],
    metadata: dict[str, MetadataValue | StoredValue],
    tensors: Sequence[StreamedTensor],
) -> list[StreamedFile]:
    """Return the parts of a model, with the tensors that the parts it is made of have."""
    parts: list[StreamedFile] = []
    for number, (path, source) in enumerate(zip(paths, model.paths, strict=True)):
        said = part_keys(number, len(paths), len(tensors))
        own = [one for one in tensors if model.tensors[one.name].path == source]
        whole = metadata | said if number == 0 else said
        parts.append(StreamedFile(path, "", whole, own))
    return parts


def quantised_types(
    source: str | PathLike[str],
    *,
    outtype: MixName,
    mtp_type: str | None = None,
    mtp: MTP = "keep",
    types: TensorTypes | None = None,
    importance: str | PathLike[str] | None = None,
    plugins: Registry | None = None,
) -> list[Retyped]:
    """Return which types ``quantize`` would give the tensors of the model's own file.

    Returns
    -------
    list of Retyped
        In the order of the file: ``name``, ``shape`` (outermost axis first), the names of the types
        ``before`` and ``after``, and ``n_bytes`` of the tensor in the new file.

    Raises
    ------
    ModelFileError
        As ``quantize``.
    """
    source = find_model(source)
    weights = None if importance is None else read_importance(take_path(importance))
    with load_model(source, sidecars=False, plugins=plugins) as model:
        left_out, choice = _choose(model, source, outtype, mtp_type, mtp, types, weights)
        own = model.parts[0] if model.parts else model
        kept = {name: tensor for name, tensor in own.tensors.items() if name not in left_out}
        streamed = _Writing(choice, weights, Workers(1)).retype(
            list(kept.values()), model.architecture, own.metadata
        )
        return [
            Retyped(
                name=one.name,
                shape=one.shape,
                before=kept[one.name].type_name,
                after=type_name(one.type),
                n_bytes=one.n_bytes,
            )
            for one in streamed
        ]


def _choose(
    model: Model,
    source: Path,
    outtype: MixName,
    mtp_type: str | None,
    mtp: MTP,
    types: TensorTypes | None,
    weights: Importance | None,
) -> tuple[dict[str, str], TypeChoice]:
    """Return what is left out, and what chooses types."""
    n_layers = model.hparams.n_layers if model.spec else None
    check_parts(
        mtp,
        str(source),
        standalone=n_layers is None,
        has_heads=model.file_layout != "trunk-only",
        has_trunk=model.file_layout != "mtp-only",
    )
    choice = TypeChoice(
        outtype,
        mtp_type,
        n_layers,
        model.spec.min_types if model.spec else (),
        [pair for drafter in model.drafters for pair in drafter.min_types],
        types,
        None if weights is None else weights.weights.keys(),
    )
    left_out = {
        name: reason
        for name in (model.parts[0] if model.parts else model).tensors
        if n_layers is not None and (reason := _left_out(name, n_layers, mtp))
    }
    return left_out, choice


def _refuse_own_file(model: Model, path: Path) -> None:
    """Raise where a file to write is one of those that are read."""
    companion = model.spec.companion if model.spec and model.parts else None
    for written in (path, *([companion_path(companion, path)] if companion else [])):
        if os.path.exists(written) and any(os.path.samefile(written, p) for p in model.paths):
            raise ModelFileError(
                "the file to write is the one to read", where=str(written), fix="give another name"
            )


def _companion(model: Model, path: Path, writing: _Writing) -> StreamedFile | None:
    """Return what is to be written beside the file at ``path``, of a model in two files."""
    if not model.parts:
        return None
    beside, companion = model.parts[1], model.spec.companion if model.spec else None
    assert companion is not None
    kept = {*unread(companion, beside)}
    of_model = [tensor for name, tensor in beside.tensors.items() if name not in kept]
    tensors = writing.retype(of_model, beside.architecture, beside.metadata)
    tensors += [_as_it_is(beside.tensors[name]) for name in beside.tensors if name in kept]
    metadata = _unsplit(beside.path) | _stamp(writing.choice, None)
    return StreamedFile(companion_path(companion, path), beside.architecture, metadata, tensors)


def _as_it_is(tensor: Tensor) -> StreamedTensor:
    return StreamedTensor(tensor.name, tensor.shape, tensor.type, lambda: [tensor.raw()])


def _left_out(name: str, n_layers: int, mtp: MTP) -> str:
    block = block_of(name)
    return left_out_of(mtp, block, block is not None and block >= n_layers)


def _stamp(choice: TypeChoice, weights: Importance | None) -> dict[str, MetadataValue]:
    """Return what a file says of its types, in the order in which llama.cpp writes it."""
    said: dict[str, MetadataValue] = {
        "general.quantization_version": GGML_QUANT_VERSION,
        "general.file_type": choice.file_type,
    }
    return said if weights is None else said | weights.described()


def _unsplit(path: Path) -> dict[str, MetadataValue | StoredValue]:
    """Return what a file says that is not split, as it is stored, and nothing of its types."""
    mapped = MappedFile(path)
    stored = stored_metadata(mapped.data or b"", str(path))
    mapped.close()
    renewed = ("general.quantization_version", "general.file_type", "general.alignment")
    kept: dict[str, MetadataValue | StoredValue] = {
        key: value
        for key, value in stored.items()
        if not key.startswith("split.") and key not in renewed
    }
    return kept


def _metadata(
    own: ModelFile | Model, model: Model, mtp: MTP
) -> dict[str, MetadataValue | StoredValue]:
    """Return what the new file says; without heads it counts the trunk's layers only."""
    metadata = _unsplit(model.parts[0].path if model.parts else model.paths[0])
    if mtp != "drop":
        return metadata
    n_layers, prefix = model.hparams.n_layers, f"{model.architecture}."
    n_blocks = own.metadata[f"{prefix}block_count"]
    metadata.pop(f"{prefix}nextn_predict_layers", None)
    metadata[f"{prefix}block_count"] = n_layers
    for key, value in own.metadata.items():
        # Lists of a model's own keys have an entry for each block, but those of the rotation.
        mine = key.startswith(prefix) and not key.startswith(f"{prefix}rope.")
        if mine and isinstance(value, list | np.ndarray) and len(value) == n_blocks:
            metadata[key] = value[:n_layers]
    return metadata


class _Writing:
    """Encodes tensors, pieces of each side by side."""

    def __init__(
        self,
        choice: TypeChoice,
        weights: Importance | None,
        workers: Workers,
        merging: Merging | None = None,
    ) -> None:
        self.choice, self.weights, self._workers = choice, weights, workers
        self._merging = merging

    def retype(
        self,
        tensors: Sequence[Tensor],
        architecture: str,
        metadata: Mapping[str, MetadataValue],
        *,
        in_order: bool = False,
    ) -> list[StreamedTensor]:
        """Return tensors of the types that were chosen, in the order of the file.

        ``in_order``: they are given so, as parts of a split model have them.
        """
        described = [Described(t.name, t.shape, t.type) for t in tensors if is_float(t.type)]
        kinds = self.choice.choose(described, architecture, metadata, in_order=in_order)
        again = {type_name(t.type) for t in tensors if self._is_requantised(t, kinds)}
        if again:
            log.warning(
                "matrices of %s are quantised once more, which loses more than from the original",
                ", ".join(sorted(again)),
            )
        if self.weights is not None:
            self._note_unweighted([name for name, kind in kinds.items() if BLOCKS[kind][0] > 1])
        ordered = tensors if in_order else sorted(tensors, key=lambda one: file_order(one.name))
        return [self._retyped(tensor, kinds.get(tensor.name, tensor.type)) for tensor in ordered]

    def _note_unweighted(self, names: Sequence[str]) -> None:
        """Say of which quantised matrices the importance matrix has no weights.

        Those of tables and of the output matrix are there only where somebody asked for them.
        """
        assert self.weights is not None
        names = [name for name in names if not is_of_output(name)]
        missing = [name for name in names if name not in self.weights.weights]
        if missing:
            log.warning(
                "%s has no weights of %d of %d matrices: %s%s",
                self.weights.path,
                len(missing),
                len(names),
                ", ".join(missing[:3]),
                ", ..." if len(missing) > 3 else "",
            )

    def _is_changed(self, tensor: Tensor) -> bool:
        return self._merging is not None and tensor.name in self._merging

    def _is_requantised(self, tensor: Tensor, kinds: Mapping[str, int]) -> bool:
        is_other = kinds.get(tensor.name, tensor.type) != tensor.type
        return BLOCKS[tensor.type][0] > 1 and (is_other or self._is_changed(tensor))

    def _retyped(self, tensor: Tensor, kind: int) -> StreamedTensor:
        if kind == tensor.type and not self._is_changed(tensor):
            return _as_it_is(tensor)
        weights = None if self.weights is None else self.weights.of(tensor.name, tensor.shape)
        return StreamedTensor(
            tensor.name, tensor.shape, kind, partial(self._blocks, tensor, kind, weights)
        )

    def _blocks(
        self, tensor: Tensor, kind: int, weights: np.ndarray | None
    ) -> Iterator[np.ndarray]:
        """Yield a tensor's blocks; pieces do not reach over a matrix of a stack."""
        n_rows = tensor.shape[-2] if len(tensor.shape) > 1 else 1
        step = max(1, _PIECE // max(1, tensor.shape[-1] if tensor.shape else 1))

        def encode_piece(begin: int, end: int, made: dict[int, np.ndarray]) -> None:
            own = None if weights is None else weights[begin // n_rows]
            source = self._merging if self._is_changed(tensor) else None
            values = source.rows(tensor, begin, end) if source else tensor.rows(begin, end)
            made[begin] = encode(tensor.name, values, kind, own)[0]

        pieces = [*pieces_of(tensor.n_rows, n_rows, step)]
        together = 4 * self._workers.threads
        for at in range(0, len(pieces), together):
            some = pieces[at : at + together]
            made: dict[int, np.ndarray] = {}
            tasks = [partial(encode_piece, *piece, made) for piece in some]
            self._workers.run_all(tasks, lambda: None)  # whatever interrupts it, pieces are short
            yield from (made[begin] for begin, _ in some)
        tensor.release()
