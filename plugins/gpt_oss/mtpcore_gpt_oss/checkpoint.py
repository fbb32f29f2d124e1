"""How gpt-oss is published, and what its model files call it."""

from typing import Literal

from mtpcore.plugin import (
    ATTENTION,
    BIASES,
    CONSTANTS,
    DECODER,
    ROPE_KEYS,
    STATED,
    TABLES,
    Checkpoint,
    Config,
    Count,
    Rename,
    block_renames,
    optional,
)
from mtpcore_gpt_oss.values import (
    MXFP4,
    blocks,
    even_blocks,
    even_columns,
    even_values,
    odd_blocks,
    odd_columns,
    odd_values,
    transposed,
)

ACTIVATION = (1.702, 7.0)


def check(config: Config) -> None:
    """Refuse what model files of the family do not say, where it is something else than they mean.

    Raises
    ------
    ValueError
        Other layers have the window, experts have another activation, or YaRN's ramp begins at a
        whole pair.
    """
    kinds = config.get(
        "layer_types", type=list[Literal["sliding_attention", "full_attention"]], default=[]
    )
    wanted = ["full_attention" if n % 2 else "sliding_attention" for n in range(len(kinds))]
    if kinds != wanted:
        raise ValueError("layer_types do not alternate, a sliding window first")
    given = tuple(
        config.get(name, default=value, type=float)
        for name, value in zip(("swiglu_alpha", "swiglu_limit"), ACTIVATION, strict=True)
    )
    if given != ACTIVATION:
        raise ValueError(f"swiglu_alpha and swiglu_limit are {given}, not {ACTIVATION}")
    for at in ("rope_parameters", "rope_scaling"):
        is_yarn = "yarn" in (config.get(f"{at}.rope_type"), config.get(f"{at}.type"))
        truncates = config.get(f"{at}.truncate", default=True, type=bool)
        if is_yarn and truncates:
            raise ValueError(f"YaRN's ramp begins at a whole pair ({at}.truncate)")


def n_used(config: Config) -> int:
    """Return how many experts each token meets."""
    return int(config.require("num_experts_per_tok|experts_per_token", Count))


def window(config: Config) -> int:
    """Return the window of even layers, of a checkpoint that files can hold."""
    check(config)
    return int(config.require("sliding_window", int))


YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""The rotation's scaling where a configuration has none: the class is released with it."""


def completed(config: Config) -> dict[str, object]:
    """Return the scaling that a configuration means without saying it."""
    is_said = any(config.get(name) is not None for name in ("rope_parameters", "rope_scaling"))
    return {} if is_said else {"rope_scaling": YARN}


EXPERTS = "mlp.experts."
PACKED: tuple[Rename, ...] = (
    *block_renames(
        {EXPERTS + "gate_up_proj_blocks": "ffn_gate_exps.weight"},
        change=even_blocks,
        is_stack=True,
        also=EXPERTS + "gate_up_proj_scales",
        blocks=MXFP4,
    ),
    *block_renames(
        {EXPERTS + "gate_up_proj_blocks": "ffn_up_exps.weight"},
        change=odd_blocks,
        is_stack=True,
        also=EXPERTS + "gate_up_proj_scales",
        blocks=MXFP4,
    ),
    *block_renames(
        {EXPERTS + "down_proj_blocks": "ffn_down_exps.weight"},
        change=blocks,
        is_stack=True,
        also=EXPERTS + "down_proj_scales",
        blocks=MXFP4,
    ),
)
"""Experts as published: blocks of four-bit floats, scales apart."""

PLAIN: tuple[Rename, ...] = (
    *block_renames(
        {EXPERTS + "gate_up_proj": "ffn_gate_exps.weight"}, change=even_columns, is_stack=True
    ),
    *block_renames(
        {EXPERTS + "gate_up_proj": "ffn_up_exps.weight"}, change=odd_columns, is_stack=True
    ),
    *block_renames(
        {EXPERTS + "down_proj": "ffn_down_exps.weight"}, change=transposed, is_stack=True
    ),
)
"""Experts as fine-tunes have them: plain numbers, inputs first."""

CHECKPOINT = Checkpoint(
    architectures=frozenset({"GptOssForCausalLM"}),
    completed=completed,
    defaults=(*STATED, ("head_dim", None), ("rms_norm_eps", 1e-5), ("rope_theta", 150000.0)),
    tensors=(
        *TABLES,
        *ATTENTION,
        *BIASES,
        *block_renames(
            {
                "self_attn.o_proj.bias": "attn_output.bias",
                "self_attn.sinks": "attn_sinks.weight",
                "post_attention_layernorm.weight": "post_attention_norm.weight",
                "mlp.router.weight": "ffn_gate_inp.weight",
                "mlp.router.bias": "ffn_gate_inp.bias",
                EXPERTS + "down_proj_bias": "ffn_down_exps.bias",
            }
        ),
        *block_renames({EXPERTS + "gate_up_proj_bias": "ffn_gate_exps.bias"}, change=even_values),
        *block_renames({EXPERTS + "gate_up_proj_bias": "ffn_up_exps.bias"}, change=odd_values),
        *optional(True, PACKED, PLAIN),  # one or the other; the graph needs them
    ),
    constants=CONSTANTS[:1],  # of a ramp see ``check``
    harmless=(("initial_context_length", "the scaling of the rotation says it"),),
    metadata=(
        *DECODER,
        *ROPE_KEYS,
        ("{arch}.attention.sliding_window", window),
        ("{arch}.expert_count", "num_local_experts"),
        ("{arch}.expert_used_count", n_used),
        ("{arch}.expert_feed_forward_length", "intermediate_size"),
    ),
)
