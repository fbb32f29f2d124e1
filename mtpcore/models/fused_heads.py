"""The parts of EAGLE-3 heads: a fusion of the target's rows, and a layer that adds a token to it.

Li, Wei, Zhang, Zhang: EAGLE-3, 2025 (arXiv 2503.01840); with norms of each tap and a normed row
that is handed on: EAGLE-3.1, 2026 (arXiv 2605.09992). Names are llama.cpp's, as far as it has them.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
import numpy as np

from mtpcore.boundary.sizes import Count
from mtpcore.declarations.checkpoint import Config, Key, Rename, TensorValues
from mtpcore.graph import GraphBuilder, Value
from mtpcore.models.blocks import attention, swiglu
from mtpcore.models.hparams import Hparams
from mtpcore.models.published import (
    DECODER,
    INTERLEAVED_ATTENTION,
    INTERLEAVED_BIASES,
    SWIGLU,
    Constants,
    MetadataKeys,
    block_renames,
    optional,
    switched_window,
)
from mtpcore.models.rope import Style
from mtpcore.models.rope_conversion import (
    FACTORED_ROPE_KEYS,
    exact_ramp,
    long_context_factors,
)

__all__ = [
    "DRAFT_VOCABULARY",
    "FUSED_CONSTANTS",
    "FUSED_HARMLESS",
    "FUSED_KEYS",
    "FUSED_MADE",
    "FUSED_PREFIXES",
    "FUSED_TENSORS",
    "FusedHparams",
    "fused_layer",
    "fuse_taps",
]

_LAYERS = "eagle_aux_hidden_state_layer_ids"
_LAYERS_BY_OUTPUT = (f"eagle_config.{_LAYERS}", "aux_hidden_states_layer_ids")
_MOST_TAPS = 8


class FusedHparams(Hparams, frozen=True, kw_only=True):
    """What EAGLE-3 adds: the width of the target's rows, and where norms stand."""

    # Converters reorder q and k so that the halves of a pair are neighbours.
    rope_style: ClassVar[Style] = "pairs"

    target_width: Count = msgspec.field(name="target_hidden_size")
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    norm_output: bool = False


def fuse_taps(g: GraphBuilder, taps: Value, h: FusedHparams) -> Value:
    """Return the row that a head reads, f32[n_tokens, width], of the target's taps side by side.

    They are normed each for itself where the file has ``fc_norm``, and together if it says so.
    """
    if g.has("fc_norm.0.weight"):
        begins = range(0, int(taps.shape[1]), h.target_width)
        parts = [g.slice(taps, begin, begin + h.target_width) for begin in begins]
        normed = [g.rms_norm(x, f"fc_norm.{i}.weight", h.norm_eps) for i, x in enumerate(parts)]
        taps = g.concat(*normed) if len(normed) > 1 else normed[0]
    if h.norm_before_fc:
        taps = g.rms_norm(taps, "enc.output_norm.weight", h.norm_eps)
    return g.matmul(taps, "fc.weight")


def fused_layer(
    g: GraphBuilder, tokens: Value, row: Value, positions: Value, h: FusedHparams
) -> Value:
    """Return what the first layer makes of each token and its row, f32[n_tokens, width].

    Parameters
    ----------
    tokens, positions : Value
        The graph's inputs.
    row : Value
        f32[n_tokens, width]; the residual stream begins with it, normed or not.
    """
    token = g.embed(tokens, "token_embd.weight")
    token = g.rms_norm(token, "blk.0.attn_norm.weight", h.norm_eps)
    normed = g.rms_norm(row, "blk.0.attn_norm_2.weight", h.norm_eps)
    pair = g.concat(token, normed)
    x = normed if h.norm_before_residual else row
    x = g.add(x, attention(g, pair, positions, 0, h, factors="rope_freqs.weight"))
    return g.add(x, swiglu(g, g.rms_norm(x, "blk.0.ffn_norm.weight", h.norm_eps), 0))


# How such heads are published. The layouts differ in their configuration and in the prefix of the
# layer: ``midlayer.`` (reference, SpecForge, AngelSlim), ``layers.0.`` (vLLM, speculators, Model
# Optimizer) or ``model.layers.0.`` (NeMo).


def _target_layers(config: Config) -> list[int]:
    """Return the layers whose input the head reads: those it names, else the default three.

    What stands at the top level is such a layer, for vLLM and speculators. In ``eagle_config``
    SGLang, and the trainers that write for it, name layers whose output is read; so does AngelSlim
    by a key of its own.
    """
    inputs: list[int] | None = config.get(_LAYERS, type=list[int])
    outputs = config.get(*_LAYERS_BY_OUTPUT, type=list[int])
    if inputs:
        return inputs
    if outputs:
        return [layer + 1 for layer in outputs]
    if config.target is None:
        return list(config[_LAYERS])
    n = config.target.n_layers
    return [2, n // 2, n - 3]


def _norms_taps(config: Config) -> bool:
    """Say whether each tap is normed for itself."""
    return bool(config.get("fc_norm") or config.get("use_aux_norm"))


def _norms_before_fc(config: Config) -> bool:
    """Say whether taps are normed together; SGLang reads it of ``eagle_config``, too."""
    said = config.get("norm_before_fc", "eagle_config.norm_before_fc", type=bool)
    return bool(said)


def _target_width(config: Config) -> int:
    """Return the width of the target's rows."""
    of_target = config.target["hidden_size"] if config.target else None
    return int(config.get("target_hidden_size") or of_target or config["hidden_size"])


def _norm_of_tap(tap: int) -> Rename:
    """Return the rename of a tap's norm; the configuration says whether there is one."""

    def is_optional(config: Config) -> bool:
        return not _norms_taps(config) or tap >= len(_target_layers(config))

    name = f"fc_norm.{tap}.weight"
    return Rename(name, name, optional=is_optional)


def _absolute(offsets: TensorValues, config: Config) -> TensorValues:
    """Return the target's id of each draft id; checkpoints store how far the two are apart."""
    ids: TensorValues = offsets.astype(np.int64) + np.arange(len(offsets), dtype=np.int64)
    return ids


def _whole_vocabulary(config: Config) -> bool:
    """Say whether every token of the target is drafted."""
    n_draft = config.get("draft_vocab_size")
    return n_draft is None or bool(n_draft == config["vocab_size"])


def _interleave_norm(values: TensorValues, config: Config) -> TensorValues:
    """Order a norm's values as those of the heads that it norms."""
    return values.reshape(2, -1).T.reshape(-1)


DRAFT_VOCABULARY: tuple[Rename, ...] = (
    Rename("d2t", "d2t", _absolute, optional=_whole_vocabulary),
)
"""The tokens of a reduced draft vocabulary; ``t2d``, which says the same, is to be dropped."""

FUSED_TENSORS: tuple[Rename, ...] = (
    Rename("fc.weight", "fc.weight"),
    Rename("input_norm.weight", "enc.output_norm.weight", optional=True),
    *(_norm_of_tap(tap) for tap in range(_MOST_TAPS)),
    *INTERLEAVED_ATTENTION,
    *block_renames(
        {
            "self_attn.q_norm.weight": "attn_q_norm.weight",
            "self_attn.k_norm.weight": "attn_k_norm.weight",
        },
        change=_interleave_norm,
        optional=True,
    ),
    *optional(
        True,
        INTERLEAVED_BIASES,
        block_renames(
            {
                f"{name}.bias": f"{tensor}.bias"
                for name, tensor in {
                    "self_attn.o_proj": "attn_output",
                    "mlp.gate_proj": "ffn_gate",
                    "mlp.up_proj": "ffn_up",
                    "mlp.down_proj": "ffn_down",
                }.items()
            }
        ),
    ),
    *block_renames({"post_attention_layernorm.weight": "ffn_norm.weight"}),
    Rename("model.layers.0.hidden_norm.weight", "blk.0.attn_norm_2.weight"),
    *SWIGLU,
    Rename("norm.weight", "output_norm.weight"),
    Rename("lm_head.weight", "output.weight", optional=True),
    Rename("embed_tokens.weight", "token_embd.weight", optional=True),
    *DRAFT_VOCABULARY,
)
"""Tensors of a head, with Qwen3's norms of q and k, and biases, where it has them."""

FUSED_PREFIXES: tuple[tuple[str, str], ...] = (
    ("midlayer.", "model.layers.0."),
    ("layers.", "model.layers."),
    *((f"model.{name}.", f"{name}.") for name in ("fc", "fc_norm", "norm", "embed_tokens")),
    *((f"aux_norm_{name}.", f"fc_norm.{i}.") for i, name in enumerate(("low", "mid", "high"))),
)
"""How trainers spell the names; the last three are SGLang's of older files."""

FUSED_CONSTANTS: Constants = (
    ("hidden_act", ("silu", "swish")),
    *((f"{at}use_aux_hidden_state", (True,)) for at in ("", "eagle_config.")),
    *(
        (f"{at}{name}", (True,))
        for at in ("", "eagle_config.")
        for name in ("use_last_layernorm", "use_input_layernorm_in_first_layer")
    ),
    ("eagle_config.parallel_draft_step", (1,)),
    ("parallel_draft_step", (1,)),
)
"""What every graph of such a head does, which Model Optimizer's configurations can switch off."""

FUSED_HARMLESS: tuple[tuple[str, str], ...] = (
    ("has_lm_head embed_requires_grad has_no_defaults_at_init", "the tensors say it"),
    ("num_aux_hidden_states", "the width of fc says it"),
    ("truncated_vocab_size", "another name for draft_vocab_size"),
    ("target_model_type target_hidden_act modal_type", "the target says it"),
    ("mrope_section mrope_interleaved", "in texts the axes of a position agree"),
    ("next_layer_regular", "of further layers, which there are not"),
    ("parallel_draft_heads_num_layers", "of heads that draft in parallel, which there are not"),
)
"""What such configurations say besides."""

FUSED_MADE = (("rope_freqs.weight", long_context_factors),)
"""Divisors of rotary frequencies."""

FUSED_KEYS: MetadataKeys = (
    *DECODER,
    *FACTORED_ROPE_KEYS,
    ("{arch}.attention.sliding_window", switched_window),
    ("{arch}.vocab_size", "vocab_size"),
    ("{arch}.target_layers", _target_layers),
    ("{arch}.target_hidden_size", _target_width),
    ("{arch}.norm_before_residual", Key("norm_before_residual", False)),
    ("{arch}.norm_before_fc", _norms_before_fc),
    ("{arch}.norm_output", Key("norm_output", False)),
    ("{arch}.rope.scaling.truncate", exact_ramp),
)
"""Sizes, rotation, the target's layers and where norms stand."""
