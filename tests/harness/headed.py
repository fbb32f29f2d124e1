"""Tiny models with a NextN block, made of those of llama.cpp's generator, which have none."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from harness.architectures import header
from harness.peer_headers import parsed
from mtpcore.gguf import write_model_file

__all__ = ["HEADED", "write_headed"]

Shapes = dict[str, tuple[int, ...]]
_NEAR_LAST = {"attention.sliding_window_pattern": np.array([False, True])}


def _of_last_layer(shapes: Shapes, n: int) -> Shapes:
    """Return the shapes of a block with the tensors of the layer before it."""
    last = f"blk.{n - 1}."
    return {
        name.replace(last, f"blk.{n}."): shape
        for name, shape in shapes.items()
        if name.startswith(last)
    }


def _of_two_layers(shapes: Shapes, n: int) -> Shapes:
    """Return those of a block with the attention of the first layer and the experts of the next."""
    made = {
        name.replace(f"blk.{i}.", f"blk.{n}."): shape
        for name, shape in shapes.items()
        for i, part in enumerate(("attn", "ffn"))
        if name.startswith((f"blk.{i}.{part}", f"blk.{i}.exp"))
    }
    return made | {f"blk.{n}.layer_output_norm.weight": shapes["output_norm.weight"]}


def _with_experts(shapes: Shapes, n: int) -> Shapes:
    """Put experts without gates into the last layer; return a block with attention before them."""
    (width,), n_experts, inner, latent = shapes["output_norm.weight"], 4, 96, 64
    experts = {
        "ffn_gate_inp.weight": (n_experts, width),
        "exp_probs_b.bias": (n_experts,),
        "ffn_up_exps.weight": (n_experts, inner, latent),
        "ffn_down_exps.weight": (n_experts, latent, inner),
        "ffn_up_shexp.weight": (inner, width),
        "ffn_down_shexp.weight": (width, inner),
        "ffn_latent_down.weight": (latent, width),
        "ffn_latent_up.weight": (width, latent),
    }
    for name in [name for name in shapes if name.startswith(f"blk.{n - 1}.ffn")]:
        del shapes[name]
    shapes |= {f"blk.{n - 1}.{name}": shape for name, shape in experts.items()}
    attention = {name: shape for name, shape in shapes.items() if name.startswith("blk.0.attn")}
    return {
        f"blk.{n}.post_attention_norm.weight": (width,),
        **{f"blk.{n}.{name}": shape for name, shape in experts.items()},
        **{name.replace("blk.0.", f"blk.{n}."): shape for name, shape in attention.items()},
    }


HEADED: dict[str, tuple[str, dict[str, object], Callable[[Shapes, int], Shapes]]] = {
    "bailingmoe3": (
        "bailingmoe3-moe",
        {
            "attention.head_count": [1, 0, 1],
            "attention.head_count_kv": [1, 0, 1],
            "expert_weights_norm": True,
        },
        _of_two_layers,
    ),
    "nemotron_h_moe": (
        "nemotron_h_moe-dense",
        {
            "attention.head_count": [2, 0, 2, 2],
            "attention.head_count_kv": [2, 0, 2, 2],
            "feed_forward_length": [0, 0, 384, 384],
            "expert_count": 4,
            "expert_used_count": 2,
            "expert_feed_forward_length": 96,
            "expert_shared_feed_forward_length": 96,
            "moe_latent_size": 64,
            "attention.layer_norm_epsilon": 1e-5,
        },
        _with_experts,
    ),
    "cohere2moe": ("cohere2moe-moe", {"logit_scale": 0.25, **_NEAR_LAST}, _of_last_layer),
    "hy_v3": ("hy_v3-moe", {"expert_weights_norm": True, **_NEAR_LAST}, _of_last_layer),
    "step35": (
        "laguna-moe",
        {
            "expert_shared_feed_forward_length": 192,
            "swiglu_clamp_exp": np.array([0, 0.5, 0.3], np.float32),
            "swiglu_clamp_shexp": np.array([0.4, 0, 0.3], np.float32),
            "attention.sliding_window_pattern": np.array([False, True, True]),
        },
        _of_last_layer,
    ),
}
"""By architecture: the file whose header they have, metadata of their own, and the block."""


def write_headed(architecture: str, path: Path) -> Path:
    """Write a model of the generator's layers, a block after them, and a head around that."""
    source, own, block_of = HEADED[architecture]
    made = parsed(header(source))
    before = str(made.metadata["general.architecture"])
    n = int(made.metadata[f"{before}.block_count"])
    metadata = {
        key.replace(f"{before}.", f"{architecture}."): value
        for key, value in made.metadata.items()
        if not (isinstance(value, np.ndarray | list) and len(value) == n)
    }
    shapes = {e.name: e.shape for e in made.tensors if not e.name.endswith("scale")}
    shapes |= block_of(shapes, n)
    width = shapes["output_norm.weight"][0]
    own_norm = () if f"blk.{n}.layer_output_norm.weight" in shapes else ("shared_head_norm",)
    norms = ("enorm", "hnorm", *own_norm)
    shapes |= {
        f"blk.{n}.nextn.eh_proj.weight": (width, 2 * width),
        **{f"blk.{n}.nextn.{x}.weight": (width,) for x in norms},
    }
    metadata |= {
        "general.architecture": architecture,
        f"{architecture}.block_count": n + 1,
        f"{architecture}.nextn_predict_layers": 1,
        f"{architecture}.attention.sliding_window_pattern": np.array([False, True]),
        **{f"{architecture}.{key}": value for key, value in own.items()},
    }
    write_model_file(path, architecture, metadata, {k: _weights(k, s) for k, s in shapes.items()})
    return path


def _weights(name: str, shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    values = 0.1 * rng.standard_normal(shape, np.float32)
    return values + 1 if name.endswith("norm.weight") else values
