"""How metadata keys may be spelled besides their plain value: data, by what llama.cpp reads.

Keys stand without their architecture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["BY_LAYER", "ZERO_IS_NONE", "other_numbers"]

ZERO_IS_NONE = frozenset(
    {
        "attention.key_length_mla",
        "attention.scale",
        "attention.value_length_mla",
        "attention.value_scale",
        "embedding_scale",
        "expert_group_count",
        "expert_group_used_count",
        "expert_weights_scale",
        "logit_scale",
        "residual_scale",
        "rope.scale_linear",
        "rope.scaling.factor",
        "rope.scaling.original_context_length",
    }
)
"""Keys whose 0 is as good as a missing key; llama.cpp's saver writes it for all that is unset."""

BY_LAYER = frozenset({"attention.head_count", "attention.head_count_kv", "expert_used_count"})
"""Keys that hold one number for all layers, or a list with an entry for each block."""


def other_numbers(value: object) -> Iterator[object]:
    """Yield the same number, or list of numbers, in other types: 8.0 as 8, and 0 and 1 as flags."""
    values: list[Any] = value if isinstance(value, list) else [value]
    is_list = isinstance(value, list)
    if all(type(one) is int or (type(one) is float and one.is_integer()) for one in values):
        whole = [int(one) for one in values]
        yield whole if is_list else whole[0]
        if all(one in (0, 1) for one in whole):
            flags = [bool(one) for one in whole]
            yield flags if is_list else flags[0]
