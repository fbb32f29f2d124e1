"""Writing model files, on the ``gguf`` package; the same arguments give the same bytes."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable, Mapping
from operator import index
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter, quants

from mtpcore._ext import _encode
from mtpcore.errors import ModelFileError
from mtpcore.gguf.header import MetadataValue, StoredValue
from mtpcore.gguf.types import BLOCKS, PLAIN, block_type, type_name

__all__ = ["FileWriter", "add_value", "can_write", "encode", "take_values", "write_model_file"]

_STORED = {
    "b": GGUFValueType.BOOL,
    "u1": GGUFValueType.UINT8,
    "i1": GGUFValueType.INT8,
    "u2": GGUFValueType.UINT16,
    "i2": GGUFValueType.INT16,
    "u4": GGUFValueType.UINT32,
    "i4": GGUFValueType.INT32,
    "f4": GGUFValueType.FLOAT32,
    "u8": GGUFValueType.UINT64,
    "i8": GGUFValueType.INT64,
    "f8": GGUFValueType.FLOAT64,
}


def write_model_file(
    path: str | PathLike[str],
    architecture: str,
    metadata: Mapping[str, MetadataValue],
    tensors: Mapping[str, np.ndarray],
    types: Mapping[str, int | str] | int | str = "F32",
    *,
    max_tensors: int = 0,
) -> None:
    """Write a GGUF file, as a whole or not at all.

    It is written in a temporary folder and renamed when it is complete: processes that have mapped
    an old file of that name keep its content, and a failure leaves the old file.

    Parameters
    ----------
    path : path
    architecture : str
    metadata : mapping
        Key to value. An int is stored as uint32 (int32 if negative, 64 bits where needed), a
        float as float32, a list by its values, a NumPy array or scalar in its dtype. Empty lists
        and strings are left out, as the ``gguf`` package does.
    tensors : mapping of str to array
        Values, outermost axis first; or uint8[..., row_bytes], blocks of the type wanted.
    types : type or mapping of str to type
        Type id or name for all tensors, or by tensor name ("F32" where a name is missing).
        Vectors stay F32 under a common type, as norms and biases do. Integer arrays keep their
        dtype.
    max_tensors : int
        Split into files of at most this many tensors (0: one file); the first is then
        ``name-00001-of-0000n.gguf``, and they grow under their own names.

    Raises
    ------
    ModelFileError
        If a type is unknown, cannot be made from values, or does not fit the rows.
    """
    path = Path(path)
    with tempfile.TemporaryDirectory(prefix=f".{path.name[:40]}.", dir=path.parent) as folder:
        writer = GGUFWriter(Path(folder) / path.name, architecture, split_max_tensors=max_tensors)
        for key, value in metadata.items():
            if key != "general.architecture":
                add_value(writer, key, value)
        for name, values in tensors.items():
            if isinstance(types, Mapping):
                chosen = types.get(name, "F32")
            else:
                chosen = types if values.ndim > 1 else "F32"
            blocks, kind = encode(name, values, _type_id(name, chosen))
            shape = blocks.shape
            if blocks.dtype == np.uint8:
                n_values, n_bytes = BLOCKS[kind]
                shape = (*shape[:-1], shape[-1] // n_bytes * n_values)
                blocks = blocks.view(np.int8)  # of uint8 the package counts what it knows
            writer.add_tensor(name, blocks, shape, kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        for part in sorted(Path(folder).iterdir()):
            part.replace(path.parent / part.name)


class FileWriter(GGUFWriter):  # type: ignore[misc]
    """The package's writer, which takes values as another file has them, too."""

    def _pack_val(
        self,
        val: Any,
        vtype: GGUFValueType,
        add_vtype: bool,
        sub_type: GGUFValueType | None = None,
    ) -> bytes:
        if isinstance(val, StoredValue):
            return val
        packed: bytes = super()._pack_val(val, vtype, add_vtype, sub_type)
        return packed


def add_value(
    writer: GGUFWriter, key: str, value: MetadataValue | np.generic | StoredValue
) -> None:
    """Add a metadata value, stored as ``write_model_file`` says, or as another file has it.

    Raises
    ------
    ModelFileError
        A model file cannot hold it.
    """
    if isinstance(value, StoredValue):
        writer.add_key_value(key, value, GGUFValueType.STRING)
        return
    if not _fits(value):
        raise ModelFileError(
            "a model file cannot hold this value",
            where=f"metadata key {key!r}",
            wanted="numbers of up to 64 bits (in lists 32), valid text, lists of one kind",
            got=repr(value)[:80],
        )
    if key == "general.alignment":
        writer.add_custom_alignment(value)
    elif isinstance(value, np.ndarray | np.generic):
        kind = _STORED["b" if value.dtype.kind == "b" else value.dtype.str[1:]]
        if isinstance(value, np.generic):
            writer.add_key_value(key, value.item(), kind)
        elif value.size:
            writer.add_key_value(key, value.tolist(), GGUFValueType.ARRAY, kind)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        narrow, wide = (
            (GGUFValueType.INT32, GGUFValueType.INT64)
            if value < 0
            else (GGUFValueType.UINT32, GGUFValueType.UINT64)
        )
        writer.add_key_value(key, value, narrow if -(1 << 31) <= value < 1 << 32 else wide)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, _bytes(value))
    elif value:
        kind = GGUFValueType.STRING if isinstance(value[0], str) else None
        writer.add_key_value(key, [_bytes(item) for item in value], GGUFValueType.ARRAY, kind)


def _fits(value: object, in_list: bool = False) -> bool:
    """Say whether a metadata value can be stored."""
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind == "b" or value.dtype.str[1:] in _STORED
    if isinstance(value, bool):
        return True
    if isinstance(value, int):
        low, high = (-(1 << 31), 1 << 31) if in_list else (-(1 << 63), 1 << 64)
        return low <= value < high
    if isinstance(value, list):
        alike = all(isinstance(item, type(value[0])) for item in value)
        return alike and all(_fits(item, True) for item in value)
    try:
        if isinstance(value, float):
            struct.pack("<f", value)
        else:
            _bytes(value)  # type: ignore[arg-type]
    except (OverflowError, UnicodeEncodeError):
        return False
    return isinstance(value, float | str)


def take_values(writer: GGUFWriter) -> dict[str, MetadataValue]:
    """Return the metadata that was added to a writer, as ``add_value`` stores it alike."""
    dtypes = {kind: np.dtype(code if code != "b" else "?") for code, kind in _STORED.items()}
    # Those that ``add_value`` makes of Python's own.
    plain: dict[GGUFValueType, Callable[[Any], MetadataValue]] = {
        GGUFValueType.UINT32: index,
        GGUFValueType.FLOAT32: float,
        GGUFValueType.BOOL: bool,
    }
    values: dict[str, MetadataValue] = {}
    for key, stored in writer.kv_data[0].items():
        if stored.type == GGUFValueType.ARRAY and stored.sub_type in dtypes:
            values[key] = np.asarray(stored.value, dtypes[stored.sub_type])
        elif stored.type in plain:
            values[key] = plain[stored.type](stored.value)
        elif stored.type in dtypes:
            values[key] = dtypes[stored.type].type(stored.value)
        else:
            values[key] = stored.value
    return values


def _bytes(value: MetadataValue) -> object:
    """Encode a string as the header parser decodes it; other values stay."""
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def _type_id(name: str, kind: int | str) -> int:
    found = block_type(kind) if isinstance(kind, str) else kind
    if found not in BLOCKS:
        known = ", ".join(type_name(k) for k in BLOCKS)
        raise ModelFileError(
            "unknown tensor type", where=f"tensor {name!r}", wanted=known, got=kind
        )
    return found


def can_write(kind: int) -> bool:
    """Say whether values can be stored in a type."""
    return kind in PLAIN or bool(_encode.encodes(kind))


def encode(
    name: str, values: np.ndarray, kind: int, importance: np.ndarray | None = None
) -> tuple[np.ndarray, int]:
    """Return the bytes of a tensor (or a plain array of its values) and its type.

    Parameters
    ----------
    name : str
        For errors.
    values : array
        Values, or uint8[..., row_bytes], blocks that are there already.
    kind : int
        Type id.
    importance : float32 [n_columns], optional
        Weights of the columns' errors, finite and not below 0, for types with blocks.

    Raises
    ------
    ModelFileError
        If the type cannot be made from values, does not fit the rows, or values are not finite.
    """
    where = f"tensor {name!r}"
    n_values, n_bytes = BLOCKS[kind]
    if values.dtype == np.uint8:
        if values.shape[-1] % n_bytes:
            wanted = f"a multiple of {n_bytes}"
            raise ModelFileError(
                "not whole blocks", where=where, wanted=wanted, got=values.shape[-1]
            )
        return values, kind
    if values.dtype.kind == "i":
        kinds = {dtype: plain for plain, dtype in PLAIN.items()}
        return values, kinds[values.dtype.newbyteorder("<")]
    if kind in PLAIN:
        return values.astype(PLAIN[kind]), kind
    if values.shape[-1] % n_values:
        wanted = f"a multiple of {n_values}"
        raise ModelFileError(
            f"rows are not whole {type_name(kind)} blocks",
            where=where,
            wanted=wanted,
            got=values.shape[-1],
        )
    values = values.astype(np.float32, copy=False)
    if _encode.encodes(kind):
        if not np.isfinite(values).all():
            raise ModelFileError(
                f"values that are not finite cannot be quantised to {type_name(kind)}",
                where=where,
                fix="take the model as it was published, or a float type",
            )
        rows = np.ascontiguousarray(values.reshape(-1, values.shape[-1]))
        blocks = _encode.encode(rows, kind, importance)
        return blocks.reshape(*values.shape[:-1], -1), kind
    try:
        blocks = quants.quantize(values, GGMLQuantizationType(kind))
    except (NotImplementedError, ValueError):  # ValueError: it does not know the type
        raise ModelFileError(
            f"values cannot be quantised to {type_name(kind)}", where=where, fix="give blocks"
        ) from None
    return np.asarray(blocks, np.uint8), kind
