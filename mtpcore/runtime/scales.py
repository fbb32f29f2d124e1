"""Scales beside matrices, by which their products are multiplied.

A file of type NVFP4 has one beside each matrix, of a stack of experts one for each. llama.cpp looks
for them beside matrices of any type, and where it finds one its graphs multiply by it in some
places and pass over it in others, from family to family.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gguf import GGMLQuantizationType

from mtpcore.declarations.patterns import pattern
from mtpcore.declarations.spec import TARGET
from mtpcore.gguf import Tensor

__all__ = ["find_scales", "idle_scales"]

_NVFP4 = int(GGMLQuantizationType.NVFP4)


def find_scales(tensors: Mapping[str, Tensor], patterns: Iterable[str]) -> dict[str, str]:
    """Return the scales that count, by the name of their matrix without ``.weight``.

    Parameters
    ----------
    tensors : mapping of str to Tensor
    patterns : iterable of str
        Matrices whose scale counts whatever their type.
    """
    wanted = [pattern(one) for one in patterns]
    found = {}
    for name in tensors:
        stem, is_scale = name.removesuffix(".scale"), name.endswith(".scale")
        if not is_scale:
            continue
        matrix = tensors.get(f"{stem}.weight")
        of_type = matrix is not None and matrix.type == _NVFP4
        if of_type or any(one.fullmatch(stem.removeprefix(TARGET)) for one in wanted):
            found[stem] = name
    return found


def idle_scales(tensors: Mapping[str, Tensor], counted: Mapping[str, str]) -> set[str]:
    """Return the scales beside matrices that do not count."""
    return {
        f"{stem}.scale"
        for stem in (name.removesuffix(".weight") for name in tensors if name.endswith(".weight"))
        if f"{stem}.scale" in tensors and stem not in counted
    }
