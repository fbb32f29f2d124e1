"""Families with layers of Mamba: Mamba itself, Falcon Mamba and Jamba."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from mtpcore.boundary.sizes import Count
from mtpcore.declarations.checkpoint import Checkpoint, Config, Rename, TensorValues, number
from mtpcore.models.published import (
    ATTENTION,
    CONSTANTS,
    STATED,
    TABLES,
    block_renames,
    on_layers,
)

__all__ = ["FALCON_MAMBA", "JAMBA", "MAMBA", "rates", "without_axis"]

_N_EXPERTS = "num_experts|num_local_experts"
_UNBOUNDED = 1 << 20
"""The context that files of models without positions state; there is nothing that limits it."""


def rates(values: TensorValues, config: Config) -> TensorValues:
    """Return by what dt is multiplied, -exp(A_log), rounded once."""
    return (-np.exp(values.astype(np.float64))).astype(np.float32)


def without_axis(values: TensorValues, config: Config) -> TensorValues:
    """Return a convolution's weights: [channels, 1, kernel] -> [channels, kernel]."""
    return values.squeeze(1)


def _layer_of_mamba(prefix: str, conv_bias: str) -> tuple[Rename, ...]:
    """Return the renames of a layer; ``conv_bias`` is the setting that says if there is one."""
    names = {
        "in_proj.weight": "in.weight",
        "x_proj.weight": "x.weight",
        "dt_proj.weight": "dt.weight",
        "dt_proj.bias": "dt.bias",
        "D": "d",
        "out_proj.weight": "out.weight",
    }
    return (
        *block_renames({f"{prefix}.{name}": f"ssm_{to}" for name, to in names.items()}),
        *block_renames({f"{prefix}.A_log": "ssm_a"}, change=rates),
        *block_renames({f"{prefix}.conv1d.weight": "ssm_conv1d.weight"}, change=without_axis),
        *block_renames(
            {f"{prefix}.conv1d.bias": "ssm_conv1d.bias"},
            optional=lambda config: not config.get(conv_bias, default=True, type=bool),
        ),
    )


def _rank(*paths: str) -> Callable[[Config], int]:
    """Return a source: the rank of dt's matrices, a sixteenth of the width where it is "auto"."""

    def read(config: Config) -> int:
        said = config.get(*paths, default="auto", type=int | str)
        return -(config.require("hidden_size", Count) // -16) if said == "auto" else int(said)

    return read


def _inner_width(config: Config) -> int:
    said = config.get("intermediate_size", "d_inner", type=Count)
    return int(said or config.require("expand", Count) * config.require("hidden_size", Count))


MAMBA = Checkpoint(
    architectures=frozenset({"MambaForCausalLM"}),
    defaults=(
        ("layer_norm_epsilon", 1e-5),
        ("conv_kernel", 4),
        ("expand", 2),
        ("state_size", 16),
        ("tie_word_embeddings", True),
    ),
    prefixes=(("backbone.", "model."),),
    tensors=(
        Rename("model.embeddings.weight", "token_embd.weight"),
        Rename("model.norm_f.weight", "output_norm.weight"),
        replace(TABLES[2], copy_of="model.embeddings.weight"),
        *block_renames({"norm.weight": "attn_norm.weight"}),
        *_layer_of_mamba("mixer", "use_conv_bias"),
    ),
    constants=(("use_bias", (False,)), ("hidden_act", ("silu",)), ("rms_norm", (True,))),
    harmless=(
        (
            "use_mambapy use_falcon_mambapy use_associative_scan fused_add_norm",
            "how it is computed",
        ),
        ("residual_in_fp32", "in what precision transformers computes"),
        ("d_inner d_model n_layer expand", "other names of sizes"),
        ("pad_vocab_size_multiple", "the tables have the rows that they have"),
        (
            "time_step_floor time_step_min time_step_max time_step_init_scheme time_step_scale "
            "rescale_prenorm_residual",
            "of training",
        ),
    ),
    metadata=(
        ("{arch}.context_length", lambda config: _UNBOUNDED),
        ("{arch}.embedding_length", "hidden_size"),
        ("{arch}.feed_forward_length", lambda config: 0),
        ("{arch}.attention.head_count", lambda config: 0),
        ("{arch}.attention.layer_norm_rms_epsilon", number("layer_norm_epsilon")),
        ("{arch}.ssm.conv_kernel", "conv_kernel"),
        ("{arch}.ssm.inner_size", _inner_width),
        ("{arch}.ssm.state_size", "state_size"),
        ("{arch}.ssm.time_step_rank", _rank("time_step_rank", "dt_rank")),
        ("{arch}.ssm.dt_b_c_rms", lambda config: False),
    ),
)
FALCON_MAMBA = replace(
    MAMBA,
    architectures=frozenset({"FalconMambaForCausalLM"}),
    harmless=(
        *MAMBA.harmless,
        ("mixer_rms_eps", "files have one constant for all norms, that of layers"),
    ),
    metadata=(*MAMBA.metadata[:-1], ("{arch}.ssm.dt_b_c_rms", lambda config: True)),
)


def _every(period: str, offset: str) -> Callable[[Config], list[int]]:
    """Return which layers are of a kind: one of so many, from the first of them on."""

    def read(config: Config) -> list[int]:
        first, step = config.require(offset, int), config.require(period, Count)
        return [n for n in range(config.n_layers) if n >= first and (n - first) % step == 0]

    return read


def _others(layers: Callable[[Config], list[int]]) -> Callable[[Config], list[int]]:
    return lambda config: [n for n in range(config.n_layers) if n not in layers(config)]


_attending = _every("attn_layer_period", "attn_layer_offset")


def _sparse(config: Config) -> list[int]:
    """Return which layers have experts; where there is one, it is no expert."""
    layers = _every("expert_layer_period", "expert_layer_offset")(config)
    return layers if config.require(_N_EXPERTS, Count) > 1 else []


def _key_heads(config: Config) -> list[int]:
    """Return how many key heads each layer has, 0 where it does not attend."""
    n_heads, layers = config.require("num_key_value_heads", Count), _attending(config)
    return [n_heads if n in layers else 0 for n in range(config.n_layers)]


def _inner_width_of_jamba(config: Config) -> int:
    return int(config.require("mamba_expand", Count) * config.require("hidden_size", Count))


JAMBA = Checkpoint(
    architectures=frozenset({"JambaForCausalLM"}),
    defaults=(
        *STATED,
        ("rms_norm_eps", 1e-6),
        ("num_experts", 16),
        ("num_experts_per_tok", 2),
        ("expert_layer_period", 2),
        ("expert_layer_offset", 1),
        ("attn_layer_period", 8),
        ("attn_layer_offset", 4),
        ("mamba_d_state", 16),
        ("mamba_d_conv", 4),
        ("mamba_expand", 2),
    ),
    tensors=(
        replace(TABLES[1], source="model.final_layernorm.weight"),
        TABLES[0],
        TABLES[2],
        *block_renames(
            {
                "input_layernorm.weight": "attn_norm.weight",
                "pre_ff_layernorm.weight": "ffn_norm.weight",
            }
        ),
        *on_layers(_attending, tuple(one for one in ATTENTION if "norm" not in one.tensor)),
        *on_layers(
            _others(_attending),
            _layer_of_mamba("mamba", "mamba_conv_bias"),
            block_renames(
                {
                    f"mamba.{part}_layernorm.weight": f"ssm_{part}_norm.weight"
                    for part in ("dt", "b", "c")
                }
            ),
        ),
        *on_layers(
            _sparse,
            block_renames({"feed_forward.router.weight": "ffn_gate_inp.weight"}),
            block_renames(
                {
                    f"feed_forward.experts.{{e}}.{part}_proj.weight": f"ffn_{part}_exps.weight"
                    for part in ("gate", "up", "down")
                }
            ),
        ),
        *on_layers(
            _others(_sparse),
            block_renames(
                {
                    f"feed_forward.{part}_proj.weight": f"ffn_{part}.weight"
                    for part in ("gate", "up", "down")
                }
            ),
        ),
    ),
    constants=(*CONSTANTS, ("mamba_proj_bias", (False,))),
    harmless=(
        ("use_mamba_kernels use_mambapy use_associative_scan", "how transformers computes"),
        (
            "num_logits_to_keep calc_logits_for_entire_prompt",
            "of which tokens transformers gives logits",
        ),
    ),
    metadata=(
        ("{arch}.context_length", "max_position_embeddings"),
        ("{arch}.embedding_length", "hidden_size"),
        ("{arch}.feed_forward_length", "intermediate_size"),
        ("{arch}.attention.head_count", "num_attention_heads"),
        ("{arch}.attention.head_count_kv", _key_heads),
        ("{arch}.attention.layer_norm_rms_epsilon", number("layer_norm_epsilon", "rms_norm_eps")),
        ("{arch}.ssm.conv_kernel", "mamba_d_conv"),
        ("{arch}.ssm.inner_size", _inner_width_of_jamba),
        ("{arch}.ssm.state_size", "mamba_d_state"),
        ("{arch}.ssm.time_step_rank", _rank("mamba_dt_rank")),
        ("{arch}.expert_count", _N_EXPERTS),
        ("{arch}.expert_used_count", "num_experts_per_tok"),
    ),
)
