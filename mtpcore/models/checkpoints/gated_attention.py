"""Families whose attention is gated: Step 3.5, Muse Glimmer, HRM-Text and Spark 2.5."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Literal

import numpy as np
from msgspec.structs import replace

from mtpcore.boundary.sizes import Count, Depth
from mtpcore.declarations.checkpoint import Checkpoint, Config, Key, Rename, TensorValues, number
from mtpcore.models.checkpoints.dense import FFN_NORM
from mtpcore.models.checkpoints.experts import described_rotation
from mtpcore.models.checkpoints.layers import layer_kinds
from mtpcore.models.published import (
    ATTENTION,
    CONSTANTS,
    DECODER,
    HEAD_NORMS,
    INTERLEAVED_ATTENTION,
    NEXTN,
    STATED,
    SWIGLU,
    TABLES,
    block_renames,
    head_width,
    on_layers,
    plus,
)
from mtpcore.models.rope_conversion import (
    ROPE_KEYS,
    layered_rope_keys,
    llama3_factors,
    of_full_attention,
    scaling_type,
)

__all__ = ["HRM_TEXT", "MUSE_GLIMMER", "SPARK2_5", "STEP35", "STEP35_NEXTN"]


def _centered(*tables: tuple[Rename, ...]) -> tuple[Rename, ...]:
    """Return the renames of some tables, whose norms are stored minus one."""
    return tuple(
        replace(one, change=plus(1)) if "norm" in one.tensor else one
        for table in tables
        for one in table
    )


# Step 3.5

_StepKinds = list[Literal["full_attention", "sliding_attention"]]
_OTHER = "attention_other_setting"


def _padded_kinds(config: Config) -> list[bool]:
    """Return which blocks have a window, those of heads included: as listed.

    Raises
    ------
    ValueError
        The list is too short.
    """
    kinds = config.require("layer_types", _StepKinds)
    later = config.get("mtp_layer_types", default=[], type=_StepKinds)
    kinds = [*kinds[: config.n_layers], *(kinds[config.n_layers :] or later)]
    if len(kinds) < config.n_blocks:
        raise ValueError(f"layer_types has {len(kinds)} entries, fewer than {config.n_blocks}")
    return [kind == "sliding_attention" for kind in kinds[: config.n_blocks]]


def _by_kind(path: str, of_near: str) -> Callable[[Config], list[int]]:
    """Return a source: a number of each block, which those with a window have of their own."""

    def read(config: Config) -> list[int]:
        far = config.require(path, Count)
        width = config.get(f"{_OTHER}.head_dim", type=Count)
        if width not in (None, head_width(config)):
            raise ValueError(f"heads of blocks with a window are {width} wide, others not")
        near = config.get(*of_near.split("|"), default=far, type=Count)
        return [near if is_near else far for is_near in _padded_kinds(config)]

    return read


def _bases(config: Config) -> tuple[float, float]:
    """Return the bases of the rotation of blocks that see all, and of those with a window.

    Raises
    ------
    ValueError
        Blocks of one kind differ in it, or do not rotate the half and the whole of a head.
    """
    kinds = _padded_kinds(config)
    names = [f"rope_parameters.{kind}_attention" for kind in ("full", "sliding")]
    described = [config.get(f"{name}.rope_theta", default=1e4, type=float) for name in names]
    said = config.get("rope_theta", type=float | list[float])
    if said is None:
        listed = [described[is_near] for is_near in kinds]
    else:
        listed = said if isinstance(said, list) else [said] * len(kinds)
    pairs = [*zip(listed, kinds, strict=False)]
    found = [{base for base, is_near in pairs if is_near == kind} for kind in (False, True)]
    meant = (0.5, 1.0)
    shares = [meant[is_near] for is_near in kinds]
    listed_shares = config.get("partial_rotary_factors", default=shares, type=list[float])
    share_of = [
        config.get(f"{name}.partial_rotary_factor", default=share, type=float)
        for name, share in zip(names, meant, strict=True)
    ]
    if listed_shares[: len(kinds)] != shares[: len(listed_shares)] or share_of != [*meant]:
        raise ValueError("not half of a head is rotated where all is seen, and all of it elsewhere")
    if any(len(bases) > 1 for bases in found):
        raise ValueError(f"blocks of one kind rotate by several bases: {found}")
    far, near = (bases.pop() if bases else 1e4 for bases in found)
    return far, near


def _step_factors(config: Config) -> np.ndarray | None:
    """Return the divisors of rotary frequencies, 1 after those of the half that is rotated."""
    width, (base, _) = head_width(config), _bases(config)
    factors = of_full_attention(lambda c: llama3_factors(c, width // 2, base))(config)
    if factors is None:
        return None
    if config.get("yarn_only_types", default=["full_attention"]) != ["full_attention"]:
        raise ValueError("scaled rotations of other layers than those that see all")
    return np.concatenate([factors, np.ones(width // 2 - len(factors), np.float32)])


def _sparse(config: Config) -> list[int]:
    """Return the layers with experts, as listed.

    Raises
    ------
    ValueError
        There are dense layers after one of them.
    """
    kinds = config.get("mlp_layer_types", type=list[Literal["dense", "sparse"]])
    if kinds is not None:
        layers = [n for n, kind in enumerate(kinds) if kind == "sparse"]
    else:
        said = config.require("moe_layers_enum|mlp_layer_types", str | list[int])
        layers = [int(n) for n in (said.split(",") if isinstance(said, str) else said)]
    layers = sorted(n for n in layers if n < config.n_layers)
    if layers != [*range(layers[0] if layers else config.n_layers, config.n_layers)]:
        raise ValueError(f"dense layers after one with experts: {layers}")
    return layers


def _dense(config: Config) -> Collection[int]:
    return range(config.n_layers - len(_sparse(config)))


def _check_scale(config: Config) -> None:
    """Refuse another factor of scores than a head's width means.

    Raises
    ------
    ValueError
        There is one.
    """
    said = config.get("query_pre_attn_scalar", type=float)
    if said not in (None, head_width(config)):
        raise ValueError(f"query_pre_attn_scalar is {said}, not a head's {head_width(config)}")


def _limits(path: str) -> Callable[[Config], list[float] | None]:
    """Return a source: what gates are cut at, for each block; 0 for none."""

    def read(config: Config) -> list[float] | None:
        said = config.get(path, type=list[float | None])
        if said is None:
            return None
        return [limit or 0.0 for limit in (*said, *[0.0] * config.n_blocks)][: config.n_blocks]

    return read


_STEP_ATTENTION = _centered(
    ATTENTION,
    HEAD_NORMS,
    FFN_NORM,
    block_renames({"self_attn.g_proj.weight": "attn_gate.weight"}),
)
_STEP_NAMES = frozenset({"Step3p5ForCausalLM", "Step3p7ForConditionalGeneration"})
STEP35 = Checkpoint(
    architectures=_STEP_NAMES,
    nested=("text_config",),
    dropped=("vision_model.*", "vit_large_projector.*"),
    defaults=(
        ("intermediate_size", None),
        *((name, None) for name in ("head_dim", "layer_types")),
        ("rms_norm_eps", 1e-5),
        ("moe_router_scaling_factor", 1.0),
    ),
    tensors=(
        *_centered(TABLES),
        *_STEP_ATTENTION,
        *on_layers(_dense, SWIGLU),
        *on_layers(
            _sparse,
            block_renames(
                {"moe.gate.weight": "ffn_gate_inp.weight", "moe.router_bias": "exp_probs_b.bias"}
            ),
            block_renames(
                {
                    f"moe.{part}_proj.weight": f"ffn_{part}_exps.weight"
                    for part in ("gate", "up", "down")
                },
                is_stack=True,
            ),
            block_renames(
                {
                    f"share_expert.{part}_proj.weight": f"ffn_{part}_shexp.weight"
                    for part in ("gate", "up", "down")
                }
            ),
        ),
    ),
    made=(("rope_freqs.weight", _step_factors),),
    constants=(
        *CONSTANTS,
        ("att_impl_type", ("GQA",)),
        ("moe_router_activation", ("sigmoid",)),
        ("norm_expert_weight", (True,)),
        ("use_head_wise_attn_gate", (True,)),
        ("use_moe", (True,)),
        ("use_moe_router_bias", (True,)),
        ("use_qk_norm", (True,)),
        ("zero_centered", (True,)),
    ),
    harmless=(
        ("max_seq_len", "another name of a size"),
        ("need_fp32_gate", "in what precision the model is run"),
        ("moe_layer_offset moe_every_n_layer mtp_mlp_layer_types", "the layers are listed"),
        (f"{_OTHER}.attention_type {_OTHER}.true_head_dim", "other names of what else says"),
        ("projector_bias understand_projector_stride im_end_token im_patch_token im_start_token"
         " image_token_len patch_token_len", "of images"),
    ),
    metadata=(
        *(pair for pair in DECODER if "head_count" not in pair[0]),
        ("{arch}.rope.scaling.type", of_full_attention(scaling_type((), "llama3"))),
        ("{arch}.rope.freq_base", lambda config: _bases(config)[0]),
        ("{arch}.rope.freq_base_swa", lambda config: _bases(config)[1]),
        ("{arch}.attention.head_count", _by_kind(
            "num_attention_heads", f"{_OTHER}.num_attention_heads|num_sliding_attention_heads")),
        ("{arch}.attention.head_count_kv", _by_kind(
            "num_attention_groups|num_key_value_heads", f"{_OTHER}.num_attention_groups")),
        ("{arch}.attention.scale", _check_scale),
        ("{arch}.attention.sliding_window", Key("sliding_window")),
        ("{arch}.attention.sliding_window_pattern", _padded_kinds),
        ("{arch}.expert_count", "moe_num_experts|n_routed_experts"),
        ("{arch}.expert_used_count", "moe_top_k|num_experts_per_tok"),
        ("{arch}.expert_feed_forward_length", "moe_intermediate_size"),
        ("{arch}.expert_shared_feed_forward_length", "share_expert_dim"),
        ("{arch}.expert_gating_func", lambda config: 2),  # sigmoid
        ("{arch}.expert_weights_norm", lambda config: True),
        ("{arch}.expert_weights_scale", number("moe_router_scaling_factor")),
        ("{arch}.leading_dense_block_count", lambda config: len(_dense(config))),
        ("{arch}.moe_every_n_layers", lambda config: 1),
        ("{arch}.swiglu_clamp_exp", _limits("swiglu_limits")),
        ("{arch}.swiglu_clamp_shexp", _limits("swiglu_limits_shared")),
    ),
)  # fmt: skip
STEP35_NEXTN = Checkpoint(
    architectures=_STEP_NAMES,
    heads="model.layers.{n}.eh_proj.weight",
    counts=("num_nextn_predict_layers",),
    tensors=(
        *_centered(
            tuple(
                replace(
                    one,
                    source=one.source.replace("shared_head.head", "shared_head.output").replace(
                        "shared_head.", "transformer.shared_head."
                    ),
                )
                for one in NEXTN
            )
        ),
        *_STEP_ATTENTION,
        *SWIGLU,
    ),
)


# Muse Glimmer


def _norm_of_heads(
    value: Callable[[Config], float],
) -> Callable[[TensorValues, Config], TensorValues]:
    """Return a change: a norm's weights that are all one number, whatever the values."""

    def change(values: TensorValues, config: Config) -> TensorValues:
        return np.full(head_width(config), value(config), np.float32)

    return change


def _base_of_layers(config: Config) -> dict[str, object]:
    """Return the base of the rotation, where layers alone say it."""
    bases = {*config.get("layer_rope_theta", default=[], type=list[float | None])} - {None, 0.0}
    return {"rope_theta": bases.pop()} if len(bases) == 1 else {}


def _turning_layers(config: Config) -> list[bool]:
    """Return which layers have a window; they are those that rotate, by one base.

    Raises
    ------
    ValueError
        Other layers rotate, or by other bases.
    """
    kinds = layer_kinds(config, 4)
    base = config.get("rope_parameters.rope_theta", "rope_theta", default=1e4, type=float)
    bases = config.get("layer_rope_theta", type=list[float | None])
    if bases is not None and [b or 0.0 for b in bases] != [base if near else 0.0 for near in kinds]:
        raise ValueError(f"layers with a window are not those that rotate by {base}: {bases}")
    return kinds


MUSE_GLIMMER = Checkpoint(
    architectures=frozenset({"MuseGlimmerForConditionalGeneration"}),
    nested=("text_config",),
    prefixes=(("model.language_model.", "model."),),
    completed=_base_of_layers,
    dropped=("model.vision_tower.*", "model.vision_adapter.*", "model.vision_projection.*"),
    defaults=(
        *STATED,
        ("head_dim", 128),
        ("rms_norm_eps", 1e-5),
        ("sliding_window", 2048),
        ("layer_types", None),
        ("final_logit_softcapping", 20.0),
        ("output_multiplier", None),
        ("qk_scale_factor", 3.87),
    ),
    tensors=(
        *TABLES,
        *_centered(
            INTERLEAVED_ATTENTION,
            block_renames(
                {
                    "post_attention_layernorm.weight": "post_attention_norm.weight",
                    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
                    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
                }
            ),
        ),
        *block_renames({"self_attn.gate_proj.weight": "attn_gate.weight"}),
        *block_renames(
            {"self_attn.q_proj.weight": "attn_q_norm.weight"},
            change=_norm_of_heads(lambda config: config.require("qk_scale_factor", float)),
        ),
        *block_renames(
            {"self_attn.q_proj.weight": "attn_k_norm.weight"},
            change=_norm_of_heads(lambda config: 1.0),
        ),
        *SWIGLU,
    ),
    constants=(
        ("hidden_activation", ("silu",)),
        ("post_norm_eps", (1e-8,)),
        ("attention_bias", (False,)),
    ),
    harmless=(
        ("out_hidden_size projector_hidden_act projector_hidden_size", "of images"),
        ("qk_scale_factor", "the norms of heads hold it"),
    ),
    metadata=(
        *DECODER,
        *ROPE_KEYS,
        ("{arch}.attention.sliding_window", "sliding_window"),
        ("{arch}.attention.sliding_window_pattern", _turning_layers),
        ("{arch}.final_logit_softcapping", number("final_logit_softcapping")),
        ("{arch}.logit_scale", number("output_multiplier")),
    ),
)


# HRM-Text

_DEPTH = "num_layers_per_stack|num_hidden_layers"


def _counted_passes(config: Config) -> dict[str, object]:
    """Return how many blocks a file counts, one for each layer of each pass.

    Raises
    ------
    ValueError
        The configuration counts others.
    """
    depth = config.require(_DEPTH, Depth)
    n_turns, n_low = (config.require(name, Depth) for name in ("H_cycles", "L_cycles"))
    n_blocks = depth * n_turns * (n_low + 1)
    said = config.get("num_hidden_layers", type=Depth)
    if config.get("num_layers_per_stack") is not None and said != n_blocks:
        raise ValueError(f"num_hidden_layers is {said}, of {n_blocks} passes' layers")
    return {"n_passes_layers": n_blocks}


def _part(which: int, n: int) -> Callable[[TensorValues, Config], TensorValues]:
    """Return a change: one of ``n`` equal parts of a matrix's rows."""
    return lambda values, config: np.split(values, n)[which]


def _both_stacks(
    names: dict[str, str], change: Callable[..., TensorValues] | None = None
) -> tuple[Rename, ...]:
    """Return the renames of both stacks' layers: the low stack's are the file's first."""

    def first(config: Config) -> range:
        return range(config.require(_DEPTH, Depth))

    def second(config: Config) -> range:
        depth = config.require(_DEPTH, Depth)
        return range(depth, 2 * depth)

    return tuple(
        Rename(
            f"model.{stack}_module.layers.{{i}}.{source}", f"blk.{{n}}.{tensor}", change,
            layers=layers,
        )
        for stack, layers in (("L", first), ("H", second))
        for source, tensor in names.items()
    )  # fmt: skip


HRM_TEXT = Checkpoint(
    architectures=frozenset({"HrmTextForCausalLM"}),
    completed=_counted_passes,
    layers="n_passes_layers",
    defaults=(
        ("intermediate_size", None),
        ("head_dim", 128),
        ("rms_norm_eps", 1e-6),
        ("H_cycles", 2),
        ("L_cycles", 3),
        ("embedding_scale", None),
        ("prefix_lm", True),
    ),
    tensors=(
        TABLES[0],
        TABLES[2],
        Rename("model.z_L_init", "hrm.z_l_init"),
        *(
            one
            for which, part in enumerate(("gate", "q", "k", "v"))
            for one in _both_stacks(
                {"attn.gqkv_proj.weight": f"attn_{part}.weight"}, _part(which, 4)
            )
        ),
        *_both_stacks(
            {"attn.o_proj.weight": "attn_output.weight", "mlp.down_proj.weight": "ffn_down.weight"}
        ),
        *_both_stacks({"mlp.gate_up_proj.weight": "ffn_gate.weight"}, _part(0, 2)),
        *_both_stacks({"mlp.gate_up_proj.weight": "ffn_up.weight"}, _part(1, 2)),
    ),
    constants=(*CONSTANTS, ("attention_bias", (False,)), ("mlp_bias", (False,))),
    harmless=(("L_bp_cycles", "of training"),),
    metadata=(
        *(pair for pair in DECODER if "head_count_kv" not in pair[0]),
        *ROPE_KEYS,
        ("{arch}.rope.dimension_count", head_width),
        ("{arch}.embedding_scale", number("embedding_scale")),
        ("{arch}.hrm.layers_per_stack", _DEPTH),
        ("{arch}.hrm.h_cycles", "H_cycles"),
        ("{arch}.hrm.l_cycles", "L_cycles"),
        ("{arch}.hrm.prefix_lm", "prefix_lm"),
    ),
)


# Spark 2.5


def _share(kind: str) -> Callable[[Config], int]:
    """Return a source: how much of a head layers of a kind rotate."""
    path = f"rope_parameters.{kind}.partial_rotary_factor"
    return lambda config: int(head_width(config) * config.get(path, default=1.0, type=float))


SPARK2_5 = Checkpoint(
    architectures=frozenset({"Spark2_5ForCausalLM"}),
    completed=described_rotation,
    defaults=(
        *STATED,
        *((name, None) for name in ("head_dim", "rms_norm_eps", "layer_types", "sliding_window")),
    ),
    tensors=(
        *TABLES,
        *FFN_NORM,
        *block_renames(
            {
                "input_layernorm.weight": "attn_norm.weight",
                "self_attn.q_k_v_proj.weight": "attn_qkv.weight",
                "self_attn.o_proj.weight": "attn_output.weight",
                "self_attn.g_proj.weight": "attn_gate.weight",
            }
        ),
        *SWIGLU,
    ),
    constants=(
        ("hidden_act", ("gelu",)),
        ("gate_attn_act_mode", ("sigmoid",)),
        ("headwise_attn_output_gate", (True,)),
        ("attention_bias", (False,)),
        ("mlp_bias", (False,)),
    ),
    metadata=(
        *DECODER,
        *layered_rope_keys(),
        ("{arch}.vocab_size", "vocab_size"),
        ("{arch}.attention.sliding_window", "sliding_window"),
        ("{arch}.attention.sliding_window_pattern", lambda config: layer_kinds(config, 4)),
        ("{arch}.rope.dimension_count", _share("full_attention")),
        ("{arch}.rope.dimension_count_swa", _share("sliding_attention")),
    ),
)
