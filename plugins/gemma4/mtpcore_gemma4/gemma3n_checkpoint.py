"""How Gemma 3n is published, and what its model files call it."""

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Annotated

import msgspec
import numpy as np
from msgspec.structs import replace

from mtpcore.plugin import (
    DECODER,
    Checkpoint,
    Config,
    Rename,
    block_renames,
    number,
    on_layers,
)
from mtpcore_gemma4.checkpoint import (
    EMBEDDINGS,
    EPSILON,
    FULL,
    LAYER,
    OF_LAYERS,
    PARTS,
    SLIDING,
    STORED,
    TABLES,
    kinds,
    n_storing,
    plain_rotation,
    storing,
    width_by_layer,
)

_Sparsity = Annotated[float, msgspec.Meta(ge=0, lt=1)]


def completed(config: Config) -> dict[str, object]:
    """Return the rotations that older configurations mean, by names that newer ones have."""
    if config.get("rope_parameters") is not None:
        return {}
    bases = {
        SLIDING: config.get("rope_local_base_freq", default=1e4, type=float),
        FULL: config.get("rope_theta", default=1e6, type=float),
    }
    return {"rope_parameters": {kind: {"rope_theta": base} for kind, base in bases.items()}}


def sharing(config: Config) -> range:
    """Return the layers that read what others store."""
    return range(n_storing(config), config.n_layers)


def stacked(name: str) -> Callable[[Config], list[str]]:
    """Return the sources of one matrix for each stream but the first."""

    def sources(config: Config) -> list[str]:
        n_streams = config.get("altup_num_inputs", default=4, type=int)
        return [f"model.{name}.{i}.weight" for i in range(n_streams - 1)]

    return sources


def with_first_row(values: np.ndarray, config: Config) -> np.ndarray:
    """Return a table with a row for each token: those that lack one have that of token 0."""
    n_lacking = config.require("vocab_size", int) - len(values)
    if n_lacking <= 0:
        return values
    return np.concatenate([values, np.broadcast_to(values[:1], (n_lacking, *values.shape[1:]))])


def cutoffs(config: Config) -> list[float]:
    """Return at how many standard deviations each layer cuts its gates; -inf: it does not.

    A share of the values of a normal distribution lies below it, computed in float32 as by the
    class.
    """
    n = config.n_layers
    of_family = [0.95] * 10 + [0.0] * (n - 10) if n > 10 else [0.0] * n
    shares = config.get("activation_sparsity_pattern", default=of_family, type=list[_Sparsity])
    if len(shares) != n:
        raise ValueError(f"activation_sparsity_pattern has {len(shares)} entries, not {n}")
    return [_cutoff(np.float32(share)) for share in shares]


def _cutoff(share: np.float32) -> float:
    if share <= 0:
        return -math.inf
    below = (float(np.float32(2) * share - np.float32(1)) + 1) / 2
    return float(np.float32(NormalDist().inv_cdf(below) / math.sqrt(2)) * np.float32(math.sqrt(2)))


CHECKPOINT = Checkpoint(
    architectures=frozenset({"Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"}),
    completed=completed,
    defaults=(
        *EPSILON,
        ("intermediate_size", None),
        ("head_dim", 256),
        ("num_key_value_heads", 2),
        ("num_kv_shared_layers", 15),
        ("hidden_size_per_layer_input", 256),
        ("sliding_window", 512),
        ("final_logit_softcapping", 30.0),
    ),
    tensors=(
        *TABLES,
        *(one for one in LAYER if "layer_scalar" not in one.source),
        *on_layers(storing, STORED, block_renames({"self_attn.v_proj.weight": "attn_v.weight"})),
        # Of layers that share, which no model reads, and without which llama.cpp loads none.
        *on_layers(
            sharing,
            block_renames(
                {
                    "self_attn.k_proj.weight": "attn_k.weight",
                    "self_attn.v_proj.weight": "attn_v.weight",
                    "self_attn.k_norm.weight": "attn_k_norm.weight",
                },
                optional=True,
            ),
        ),
        *EMBEDDINGS,
        replace(OF_LAYERS[0], change=with_first_row),
        *OF_LAYERS[1:],
        *block_renames(
            {
                "altup.correct_output_scale": "altup_correct_scale.weight",
                "altup.correction_coefs.weight": "altup_correct_coef.weight",
                "altup.prediction_coefs.weight": "altup_predict_coef.weight",
                "altup.modality_router.weight": "altup_router.weight",
                "altup.router_norm.weight": "altup_router_norm.weight",
                "laurel.linear_left.weight": "laurel_l.weight",
                "laurel.linear_right.weight": "laurel_r.weight",
                "laurel.post_laurel_norm.weight": "laurel_post_norm.weight",
            }
        ),
        Rename("", "altup_proj.weight", sources=stacked("altup_projections")),
        Rename("", "altup_unembd_proj.weight", sources=stacked("altup_unembed_projections")),
    ),
    dropped=(
        "model.vision_tower.*",
        "model.audio_tower.*",
        "model.embed_vision.*",
        "model.embed_audio.*",
    ),
    constants=(("altup_correct_scale", (True,)),),
    harmless=(
        ("vocab_size_per_layer_input laurel_rank", "the tensors say it"),
        ("altup_coef_clip", "of training"),
        ("audio_soft_tokens_per_image", "of sound"),
        *PARTS,
    ),
    metadata=(
        *DECODER,
        ("{arch}.attention.sliding_window", "sliding_window"),
        (
            "{arch}.attention.sliding_window_pattern",
            lambda config: [kind == SLIDING for kind in kinds(config)],
        ),
        ("{arch}.attention.shared_kv_layers", lambda config: config.n_layers - n_storing(config)),
        ("{arch}.rope.freq_base", plain_rotation(FULL)),
        ("{arch}.rope.freq_base_swa", plain_rotation(SLIDING)),
        ("{arch}.embedding_length_per_layer_input", width_by_layer),
        ("{arch}.final_logit_softcapping", number("final_logit_softcapping", default=0.0)),
        (
            "{arch}.altup.num_inputs",
            lambda config: config.get("altup_num_inputs", default=4, type=int),
        ),
        (
            "{arch}.altup.active_idx",
            lambda config: config.get("altup_active_idx", default=0, type=int),
        ),
        ("{arch}.activation_sparsity_scale", cutoffs),
    ),
    prefixes=(("model.language_model.", "model."),),
    nested=("text_config",),
)
