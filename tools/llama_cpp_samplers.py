"""What llama.cpp's samplers leave of random logits, for tests/sampling/test_llama_cpp_cases.py.

    python tools/llama_cpp_samplers.py BIN tests/data/llama_cpp/samplers.json

BIN is the folder of a build of llama.cpp, as scripts/peer makes it. Each case has one sampler: its
logits, its settings by our names, the tokens before, what breaks repetitions, and the probability
of each token in the choice.
"""

from __future__ import annotations

import ctypes as c
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

N_CASES = 8
DRY = "_Z30llama_sampler_init_dry_testingffiiRKSt6vectorIS_IiSaIiEESaIS1_EE"  # of its own tests


class Token(c.Structure):
    """``llama_token_data``."""

    _fields_ = [("id", c.c_int32), ("logit", c.c_float), ("p", c.c_float)]


class Tokens(c.Structure):
    """``llama_token_data_array``."""

    _fields_ = [
        ("data", c.POINTER(Token)),
        ("size", c.c_size_t),
        ("selected", c.c_int64),
        ("is_sorted", c.c_bool),
    ]


class Vector(c.Structure):
    """``std::vector``: where it begins, where it ends, and where its room ends."""

    _fields_ = [("begin", c.c_void_p), ("end", c.c_void_p), ("room", c.c_void_p)]


SAMPLERS = {
    "typical": (c.c_float, c.c_size_t),
    "top_n_sigma": (c.c_float,),
    "xtc": (c.c_float, c.c_float, c.c_size_t, c.c_uint32),
    "temp_ext": (c.c_float, c.c_float, c.c_float),
    "penalties": (c.c_int32, c.c_int32, c.c_float, c.c_float, c.c_float),
    "dry": (c.c_float, c.c_float, c.c_int32, c.c_int32, c.POINTER(Vector)),
    "dist": (c.c_uint32,),
}
"""What makes a sampler, and its arguments."""


def vector(items: Any) -> Vector:
    """Return a vector of an array's items, which the caller keeps."""
    begin = c.addressof(items)
    return Vector(begin, begin + c.sizeof(items), begin + c.sizeof(items))


def load(folder: Path) -> tuple[c.CDLL, dict[str, Any]]:
    """Load the library and declare what is called; return what makes its samplers, too."""
    for name in ("libggml-base.so", "libggml-cpu.so", "libggml.so"):
        c.CDLL(str(folder / name), mode=c.RTLD_GLOBAL)
    library, make = c.CDLL(str(folder / "libllama.so")), {}
    for name, types in SAMPLERS.items():
        symbol = DRY if name == "dry" else f"llama_sampler_init_{name}"
        make[name] = library[symbol]
        make[name].argtypes, make[name].restype = types, c.c_void_p
    library.llama_sampler_apply.argtypes = (c.c_void_p, c.POINTER(Tokens))
    library.llama_sampler_accept.argtypes = (c.c_void_p, c.c_int32)
    return library, make


def left(library: c.CDLL, draw: int, sampler: int, logits: Any, history: list[int]) -> list[float]:
    """Return the probability of each token after a sampler, and one that draws."""
    for token in history:
        library.llama_sampler_accept(sampler, token)
    data = (Token * len(logits))(*[Token(i, float(logit), 0) for i, logit in enumerate(logits)])
    tokens = Tokens(data, len(logits), -1, False)
    library.llama_sampler_apply(sampler, c.byref(tokens))
    library.llama_sampler_apply(draw, c.byref(tokens))  # which normalises what is left
    found = [0.0] * len(logits)
    for i in range(tokens.size):
        found[tokens.data[i].id] = round(float(tokens.data[i].p), 7)
    return found


def make_cases(library: c.CDLL, make: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the cases of all samplers."""
    rng, cases = np.random.default_rng(0), list[dict[str, Any]]()
    for _ in range(N_CASES):
        n = int(rng.integers(5, 24))
        logits = (rng.normal(size=n) * rng.choice([0.5, 2, 4])).astype(np.float32)
        history = rng.integers(0, 3, 24).tolist()
        lists = [rng.integers(0, 3, size).tolist() for size in (1, 2, 3)[: rng.integers(0, 4)]]
        arrays = [(c.c_int32 * len(ids))(*ids) for ids in lists]
        inner = (Vector * len(lists))(*map(vector, arrays))
        breakers = vector(inner)
        p, sigma, threshold = (
            float(rng.choice(of)) for of in ((0.25, 0.875), (0.5, 1.5), (0.0625, 0.25))
        )
        spread, exponent = float(rng.choice([0.25, 1.5])), float(rng.choice([0.5, 1, 3]))
        last, allowed = int(rng.choice([3, 8, 24])), int(rng.integers(1, 4))
        for sampler, settings in (
            (make["typical"](p, 0), {"typical_p": p}),
            (make["top_n_sigma"](sigma), {"top_n_sigma": sigma}),
            (
                make["xtc"](1, threshold, 0, 0),
                {"xtc_probability": 1, "xtc_threshold": threshold},
            ),
            (
                make["temp_ext"](1, spread, exponent),
                {"dynatemp_range": spread, "dynatemp_exponent": exponent},
            ),
            (
                make["penalties"](n, last, 1.25, 0.25, 0.5),
                {"repetition_penalty": 1.25, "frequency_penalty": 0.25, "presence_penalty": 0.5,
                 "penalty_last_n": last},
            ),
            (
                make["dry"](0.75, 1.5, allowed, last, c.byref(breakers)),
                {"dry_multiplier": 0.75, "dry_base": 1.5, "dry_allowed_length": allowed,
                 "dry_penalty_last_n": last},
            ),
        ):  # fmt: skip
            cases.append(
                {
                    "logits": [float(f"{logit:.9g}") for logit in logits],
                    "settings": settings,
                    "history": history,
                    "breakers": lists,
                    "probabilities": left(library, make["dist"](0), sampler, logits, history),
                }
            )
    return cases


def main() -> None:
    """Write the cases, one a line."""
    folder, out = map(Path, sys.argv[1:])
    lines = map(json.dumps, make_cases(*load(folder)))
    out.write_text("[\n" + ",\n".join(lines) + "\n]\n", "utf-8")


if __name__ == "__main__":
    main()
