"""PLaMo, of all generations."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from mtpcore.boundary.sizes import Count
from mtpcore.declarations.checkpoint import (
    Checkpoint,
    Config,
    Key,
    Rename,
    TensorValues,
    number,
)
from mtpcore.models.checkpoints.layers import LayerNumbers
from mtpcore.models.checkpoints.mamba import rates, without_axis
from mtpcore.models.published import (
    ATTENTION,
    CONSTANTS,
    DECODER,
    STATED,
    SWIGLU,
    TABLES,
    block_renames,
    on_layers,
    plus,
)
from mtpcore.models.rope_conversion import ROPE_KEYS, exact_ramp

__all__ = ["PLAMO", "PLAMO2", "PLAMO3"]

_PREFIXES = (("model.layers.layers.", "model.layers."),)


def _n_key_heads(config: Config) -> int:
    """Return how many key heads there are: query heads that share one are counted.

    Raises
    ------
    ValueError
        Not all key heads have as many.
    """
    n_heads, n_shared = (
        config.require(name, Count) for name in ("num_attention_heads", "n_shared_head")
    )
    if n_heads % n_shared:
        raise ValueError(f"{n_heads} heads, of which {n_shared} share one key head")
    return int(n_heads // n_shared)


def _by_key_head(axis: int) -> Callable[[TensorValues, Config], TensorValues]:
    """Return a change: query heads that share a key head lie side by side along an axis.

    In checkpoints head i has key head i modulo their number.
    """

    def change(values: TensorValues, config: Config) -> TensorValues:
        n_shared, n_keys = config.require("n_shared_head", Count), _n_key_heads(config)
        before, after = values.shape[:axis], values.shape[axis + 1 :]
        heads = values.reshape(*before, n_shared, n_keys, -1, *after)
        return heads.swapaxes(axis, axis + 1).reshape(values.shape)

    return change


_QUERIES, _OUTPUT = "attn_q.weight", "attn_output.weight"
PLAMO = Checkpoint(
    architectures=frozenset({"PlamoForCausalLM"}),
    prefixes=_PREFIXES,
    defaults=(
        ("intermediate_size", None),
        ("n_shared_head", 8),
        ("rms_norm_eps", 1e-6),
        ("tie_word_embeddings", False),
    ),
    tensors=(
        *TABLES[:2],
        replace(TABLES[2], optional=False, copy_of=""),
        *block_renames({"norm.weight": "attn_norm.weight"}),
        *(one for one in ATTENTION if not one.tensor.endswith(("norm.weight", _QUERIES, _OUTPUT))),
        *block_renames({"self_attn.q_proj.weight": _QUERIES}, change=_by_key_head(0)),
        *block_renames({"self_attn.o_proj.weight": _OUTPUT}, change=_by_key_head(1)),
        *SWIGLU,
    ),
    dropped=("model.layers.{n}.self_attn.rotary_emb.inv_freq",),
    constants=CONSTANTS,
    harmless=(("num_key_value_heads", "that of query heads: n_shared_head says how many share"),),
    metadata=(
        *(pair for pair in DECODER if not pair[0].endswith(("context_length", "head_count_kv"))),
        ("{arch}.context_length", Key("max_position_embeddings", 4096)),
        ("{arch}.attention.head_count_kv", _n_key_heads),
        *ROPE_KEYS,
    ),
)
_TURN = (("eot", "<|plamo:op|>"),)
_FINAL_NORM = Rename("model.norm.weight", "output_norm.weight", plus(1.0))
_NORMS = tuple(
    one
    for source, tensor, offset in (
        ("pre_mixer_norm", "attn_norm.weight", 1.0),
        ("post_mixer_norm", "post_attention_norm", 1 / 5),
        ("pre_mlp_norm", "ffn_norm.weight", 1.0),
        ("post_mlp_norm", "post_ffw_norm", 1 / 5**1.5),
    )
    for one in block_renames({f"{source}.weight": tensor}, change=plus(offset))
)
"""Norms, the ones after a branch under the names of llama.cpp's files, without ``.weight``."""
_MLP = block_renames(
    {"mlp.gate_up_proj.weight": "ffn_up.weight", "mlp.down_proj.weight": "ffn_down.weight"}
)
_ATTENTION = block_renames(
    {"mixer.qkv_proj.weight": "attn_qkv.weight", "mixer.o_proj.weight": "attn_output.weight"}
)


def _is_mamba(config: Config) -> list[bool]:
    """Return which layers are recurrent: all but one of every few."""
    step, n_layers = config.require("mamba_step", Count), config.n_layers
    if not config.require("mamba_enabled", bool):
        return [False] * n_layers
    if n_layers <= step // 2:
        return [n != n_layers - 1 for n in range(n_layers)]
    return [n % step != step // 2 for n in range(n_layers)]


def _of_attention(config: Config) -> list[int]:
    return [n for n, mamba in enumerate(_is_mamba(config)) if not mamba]


def _of_mamba(config: Config) -> list[int]:
    return [n for n, mamba in enumerate(_is_mamba(config)) if mamba]


def _heads(path: str) -> Callable[[Config], list[int]]:
    """Return a source: heads of each layer, 0 where it does not attend."""
    return lambda config: [
        0 if mamba else config.require(path, Count) for mamba in _is_mamba(config)
    ]


def _near_layers(config: Config) -> list[bool] | None:
    """Return which layers attend with a window: all that attend but those which are listed.

    None where there is no window.
    """
    if config.get("attention_window_size", type=Count) is None:
        return None
    near = {*_of_attention(config)} - {
        *config.get("full_attention_idx", default=[], type=LayerNumbers)
    }
    return [n in near for n in range(config.n_layers)]


PLAMO2 = Checkpoint(
    architectures=frozenset({"Plamo2ForCausalLM", "PLaMo2ForCausalLM"}),
    prefixes=_PREFIXES,
    defaults=(
        *STATED,
        *((f"mamba_{name}", None) for name in ("step", "enabled", "d_state", "d_conv")),
        ("mamba_num_heads", None),
        ("hidden_size_per_head", None),
        ("attention_window_size", None),
        ("rms_norm_eps", 1e-6),
        ("tie_word_embeddings", True),
    ),
    tensors=(
        TABLES[0],
        _FINAL_NORM,
        TABLES[2],
        *_NORMS,
        *_MLP,
        *on_layers(
            _of_attention,
            _ATTENTION,
            block_renames(
                {
                    "mixer.q_weight": "attn_q_norm.weight",
                    "mixer.k_weight": "attn_k_norm.weight",
                }
            ),
        ),
        *on_layers(
            _of_mamba,
            block_renames(
                {
                    "mixer.in_proj.weight": "ssm_in.weight",
                    "mixer.bcdt_proj.weight": "ssm_x.weight",
                    "mixer.dt_proj.weight": "ssm_dt.weight",
                    "mixer.dt_bias": "ssm_dt.bias",
                    "mixer.D": "ssm_d",
                    "mixer.dt_norm_weight": "ssm_dt_norm",
                    "mixer.B_norm_weight": "ssm_b_norm",
                    "mixer.C_norm_weight": "ssm_c_norm",
                    "mixer.out_proj.weight": "ssm_out.weight",
                }
            ),
            block_renames({"mixer.A_log": "ssm_a"}, change=rates),
            block_renames({"mixer.conv1d.weight": "ssm_conv1d.weight"}, change=without_axis),
        ),
    ),
    constants=(
        ("linear_type", ("normal",)),
        ("use_predefined_initial_state", (False,)),
        ("image_token_id", ()),
    ),
    harmless=(
        ("mamba_chunk_size", "how many tokens are computed at once"),
        ("fp8_accum_dtype eval_attention_n_bit eval_mlp_n_bit", "in what precision it is run"),
        ("image_feature_size image_proj_type", "of images"),
    ),
    metadata=(
        ("{arch}.vocab_size", "vocab_size"),
        ("{arch}.context_length", "max_position_embeddings"),
        ("{arch}.embedding_length", "hidden_size"),
        ("{arch}.feed_forward_length", "intermediate_size"),
        ("{arch}.attention.head_count", _heads("num_attention_heads")),
        ("{arch}.attention.head_count_kv", _heads("num_key_value_heads")),
        ("{arch}.attention.key_length", "hidden_size_per_head"),
        ("{arch}.attention.value_length", "hidden_size_per_head"),
        ("{arch}.attention.layer_norm_rms_epsilon", number("rms_norm_eps")),
        ("{arch}.attention.sliding_window", Key("attention_window_size")),
        ("{arch}.attention.sliding_window_pattern", _near_layers),
        *ROPE_KEYS,
        ("{arch}.ssm.state_size", "mamba_d_state"),
        ("{arch}.ssm.conv_kernel", "mamba_d_conv"),
        ("{arch}.ssm.time_step_rank", "mamba_num_heads"),
        (
            "{arch}.ssm.inner_size",
            lambda config: (
                config.require("mamba_num_heads", Count)
                * config.require("hidden_size_per_head", Count)
            ),
        ),
        ("{arch}.ssm.group_count", lambda config: 0),
    ),
    special_tokens=_TURN,
)


def _period(config: Config) -> int | None:
    """Return which layer of a few sees all, the last one, where the others have a window."""
    if config.get("window_size", type=Count) is None:
        return None
    return int(config.require("sliding_window_pattern", Count))


def _scaled_rotation(config: Config) -> dict[str, object]:
    """Return YaRN as other configurations spell it; layers with a window are not scaled."""
    factor = config.get("rope_scaling_factor", default=1.0, type=float)
    if factor == 1:
        return {}
    return {
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": config.require("initial_context_length", Count),
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
        }
    }


PLAMO3 = Checkpoint(
    architectures=frozenset({"Plamo3ForCausalLM", "PLaMo3ForCausalLM"}),
    prefixes=_PREFIXES,
    defaults=(
        *STATED,
        *((name, None) for name in ("head_dim", "rms_norm_eps", "tie_word_embeddings")),
        ("window_size", None),
    ),
    tensors=(
        TABLES[0],
        _FINAL_NORM,
        TABLES[2],
        *_NORMS,
        *_MLP,
        *_ATTENTION,
        *block_renames(
            {
                "mixer.q_norm.weight": "attn_q_norm.weight",
                "mixer.k_norm.weight": "attn_k_norm.weight",
            },
            change=plus(1),
        ),
    ),
    constants=(
        ("hidden_act", ("silu",)),
        ("linear_type", ("normal",)),
        ("image_token_id", ()),
    ),
    completed=_scaled_rotation,
    harmless=(
        ("initial_context_length", "of a rotation that is not scaled"),
        ("fp8_accum_dtype eval_attention_n_bit eval_mlp_n_bit", "in what precision it is run"),
        ("image_feature_size image_proj_type", "of images"),
    ),
    metadata=(
        *DECODER,
        *ROPE_KEYS,
        ("{arch}.rope.scaling.truncate", exact_ramp),
        ("{arch}.vocab_size", "vocab_size"),
        ("{arch}.rope.freq_base_swa", number("rope_local_theta", default=1e4)),
        ("{arch}.attention.sliding_window", Key("window_size")),
        ("{arch}.attention.sliding_window_pattern", _period),
    ),
    special_tokens=_TURN,
)
