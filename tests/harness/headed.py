"""Tiny models with a NextN block, made of those of llama.cpp's generator, which have none.

llama.cpp runs the heads of most. Of the others it loads and skips the block: what it makes of such
a block as a layer is what the head makes of it. The rows that enter it are stated here.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from harness.architectures import header
from harness.peer_headers import parsed
from mtpcore.gguf import write_model_file

__all__ = ["HEADED", "SKIPPED", "joined_rows", "write_block_as_layer", "write_headed"]

Shapes = dict[str, tuple[int, ...]]
_NEAR_LAST = {"attention.sliding_window_pattern": np.array([False, True])}


def _of_layer(i: int) -> Callable[[Shapes, int], Shapes]:
    """Return a function that returns the shapes of a block with the tensors of layer i."""

    def block_of(shapes: Shapes, n: int) -> Shapes:
        layer = f"blk.{i % n}."
        return {
            name.replace(layer, f"blk.{n}."): shape
            for name, shape in shapes.items()
            if name.startswith(layer)
        }

    return block_of


def _of_last_layer_and_norm(shapes: Shapes, n: int) -> Shapes:
    """Return those of a block with the last layer's tensors, and a norm after it."""
    return _of_layer(-1)(shapes, n) | {
        f"blk.{n}.layer_output_norm.weight": shapes["output_norm.weight"]
    }


def _dense_of_last_layer(shapes: Shapes, n: int) -> Shapes:
    """Return those of a block with the last layer's attention, and the first one's other half."""
    made = _of_layer(0)(shapes, n) | _of_layer(-1)(shapes, n)
    return {
        name: shape
        for name, shape in made.items()
        if not re.search("exps|shexp|ffn_gate_inp|exp_probs|indexer", name)
    } | {f"blk.{n}.nextn.embed_tokens.weight": shapes["token_embd.weight"]}


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
    "bailingmoe2": (
        "bailingmoe2-moe",
        {"expert_weights_norm": True, "expert_weights_scale": 2.5},
        _of_last_layer_and_norm,
    ),
    "dots3note": (
        "dots3note-moe",
        {
            "expert_weights_norm": True,
            "attention.sliding_window": 5,
            "attention.indexer.types": np.array([True, False]),
            **_NEAR_LAST,
        },
        _dense_of_last_layer,
    ),
    "exaone-moe": (
        "exaone-moe-moe",
        {
            "expert_weights_norm": True,
            "attention.sliding_window": 5,
            "attention.sliding_window_pattern": np.array([True, False]),
        },
        _of_layer(0),
    ),
    "deepseek32": ("deepseek32-moe", {"expert_weights_norm": True}, _of_layer(-1)),
    "glm-dsa": ("glm-dsa-moe", {"expert_weights_norm": True}, _of_layer(-1)),
    "cohere2moe": ("cohere2moe-moe", {"logit_scale": 0.25, **_NEAR_LAST}, _of_layer(-1)),
    "hy_v3": ("hy_v3-moe", {"expert_weights_norm": True, **_NEAR_LAST}, _of_layer(-1)),
    "step35": (
        "laguna-moe",
        {
            "expert_shared_feed_forward_length": 192,
            "swiglu_clamp_exp": np.array([0, 0.5, 0.3], np.float32),
            "swiglu_clamp_shexp": np.array([0.4, 0, 0.3], np.float32),
            "attention.sliding_window_pattern": np.array([False, True, True]),
        },
        _of_layer(-1),
    ),
}
"""By architecture: the file whose header they have, metadata of their own, and the block."""


SKIPPED = ("bailingmoe2", "dots3note", "exaone-moe")
"""Architectures whose head llama.cpp does not run."""


def write_headed(architecture: str, path: Path) -> Path:
    """Write a model of the generator's layers, a block after them, and a head around that."""
    write_model_file(path, architecture, *_headed(architecture))
    return path


def write_block_as_layer(architecture: str, rows: np.ndarray, path: Path) -> Path:
    """Write a model whose last layer is the head's block, the only one that adds something.

    Parameters
    ----------
    architecture : str
        One of ``SKIPPED``.
    rows : ndarray
        f32[n, width], what enters the layer where the text is 0, 1, ..., n - 1.
    path : Path
    """
    metadata, tensors = _headed(architecture)
    n = int(metadata[f"{architecture}.block_count"]) - 1
    head, last = f"blk.{n}.", f"blk.{n - 1}."
    silent = re.compile(r"blk\.\d+\.(attn_output|ffn_down\w*)\.weight")
    made = {
        name: np.zeros_like(values) if silent.fullmatch(name) else values
        for name, values in tensors.items()
        if not name.startswith((last, head))
    }
    table = np.zeros_like(tensors["token_embd.weight"])
    table[: len(rows)] = rows
    block = {
        name.replace(head, last): values
        for name, values in tensors.items()
        if name.startswith(head) and "nextn" not in name and "layer_output_norm" not in name
    }
    made |= {"token_embd.weight": table, "output_norm.weight": _head_norm(tensors, head), **block}
    metadata |= {
        f"{architecture}.block_count": n,
        f"{architecture}.nextn_predict_layers": 0,
        f"{architecture}.leading_dense_block_count": n - (f"{last}ffn_gate_inp.weight" in made),
    }
    write_model_file(path, architecture, metadata, made)
    return path


def _head_norm(tensors: dict[str, np.ndarray], head: str) -> np.ndarray:
    own = tensors.get(f"{head}layer_output_norm.weight")
    return tensors[f"{head}nextn.shared_head_norm.weight"] if own is None else own


def joined_rows(architecture: str, hidden: np.ndarray, text: list[int]) -> np.ndarray:
    """Return what enters the head's block, f32[n - 1, width]: of token p and the row before it.

    ``eh_proj [rms(e(p)) * enorm, rms(h(p - 1)) * hnorm]``: vLLM's ``ExaoneMoeMultiTokenPredictor``,
    SGLang's ``BailingMoEModelNextN`` and ``Dot3NoteModelNextN``.
    """
    metadata, tensors = _headed(architecture)
    block = f"blk.{int(metadata[f'{architecture}.block_count']) - 1}.nextn."
    eps = float(metadata[f"{architecture}.attention.layer_norm_rms_epsilon"])
    table = tensors.get(f"{block}embed_tokens.weight", tensors["token_embd.weight"])

    def normed(rows: np.ndarray, name: str) -> np.ndarray:
        wide = rows.astype(np.float64)
        scale = np.sqrt(np.square(wide).mean(axis=1, keepdims=True) + eps)
        return wide / scale * tensors[f"{block}{name}.weight"]

    both = [normed(table[text[1:]], "enorm"), normed(hidden[:-1], "hnorm")]
    rows = np.concatenate(both, axis=1) @ tensors[f"{block}eh_proj.weight"].T.astype(np.float64)
    return rows.astype(np.float32)


def _headed(architecture: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return metadata and tensors of a model with a head."""
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
    return metadata, {name: _weights(name, shape) for name, shape in shapes.items()}


def _weights(name: str, shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    values = 0.1 * rng.standard_normal(shape, np.float32)
    return values + 1 if name.endswith("norm.weight") else values
