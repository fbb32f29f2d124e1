"""Targets on two cores: ratios to llama.cpp, and absolute figures.

Those of 256-bit instruction sets, which desktops have, are beside llama.cpp built without AVX-512.
"""

from __future__ import annotations

__all__ = ["least_ratio", "own_figure"]

HYBRIDS = "qwen35"

_KINDS = {
    # type: decode, verify 4, verify 8, prefill, against llama.cpp's best setting
    "q8_0": (1.0, 1.7, 2.3, 2.0),
    "q4_0": (1.0, 2.0, 2.2, 1.7),
    "q4_k_m": (1.0, 2.1, 2.3, 1.25),
    "q6_k": (1.0, 1.9, 3.0, 1.2),
    "iq4_xs": (1.4, 3.5, None, 1.2),
}
_MIXTURE = {"q4_k_m": (1.1, 1.5, None, 1.2), "q8_0": (None, 1.5, None, None)}
_HYBRID = (1.0, 1.8, None, 1.2)
_CELLS = ("decode", "verify-4", "verify-8", "prefill")
_OF_32, _OF_256 = {4: 1.15, 8: 1.3}, {4: 1.2, 8: 1.75}
_COSTS = {"q8_0": _OF_32, "q4_0": _OF_32, "q4_k_m": _OF_256, "q6_k": _OF_256, "iq4_xs": _OF_256}
"""Of rows over one, of types with blocks of 32 and of 256 columns."""
_DESKTOP = ("avx2", "avxvnni")
_OF_DESKTOP = {"decode": 1.0, "verify-4": 1.5, "prefill": 1.3}


def least_ratio(file: str, cell: str, isa: str) -> float | None:
    """Return how many times as fast as llama.cpp a cell should be, where that is said."""
    if file == "demo":
        return 1.0 if cell == "decode" else None
    if cell == "accuracy":
        return 1.0
    if isa in _DESKTOP:
        return _OF_DESKTOP.get(cell)
    if cell.startswith("depth-") and "-rows-" not in cell:
        return 1.0
    shape, kind = file.rsplit("-", 1)
    row = (_MIXTURE if "moe" in shape else _KINDS).get(kind)
    if shape.startswith(HYBRIDS):
        row = _HYBRID
    return row[_CELLS.index(cell)] if row and cell in _CELLS else None


def own_figure(file: str, cell: str, isa: str) -> tuple[str, float] | None:
    """Return what a cell should reach by itself: a figure's name and its bound."""
    if file == "demo":
        return ("ms", 0.15) if cell == "decode" else None
    shape, kind = file.rsplit("-", 1)
    dense = "moe" not in shape
    if shape.startswith(HYBRIDS):  # a part of their time is the recurrence's
        return ("cost", 1.2) if cell == "verify-4" and dense else None
    if cell == "decode" and dense:
        return "share", 0.92
    if isa in _DESKTOP:
        return ("cost", 1.5) if cell == "verify-4" and dense else None
    if cell == "prefill" and dense:
        return "gmacs", 240.0
    if cell.startswith("verify-") and dense:
        cost = _COSTS.get(kind, {}).get(int(cell.removeprefix("verify-")))
        return ("cost", cost) if cost else None
    if cell.startswith("load"):
        return "seconds", 0.25
    return None
