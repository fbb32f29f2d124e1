"""The language models of families that see images, whose encoders are left out."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from mtpcore.boundary.sizes import Count
from mtpcore.declarations.checkpoint import Checkpoint, Config, Rename, TensorValues
from mtpcore.models.checkpoints.experts import COUNTS, first_half, second_half
from mtpcore.models.published import (
    ATTENTION,
    BIASES,
    CONSTANTS,
    DECODER,
    HEAD_NORMS,
    STATED,
    SWIGLU,
    TABLES,
    block_renames,
    head_width,
    on_layers,
    switched_window,
)
from mtpcore.models.qwen3moe import dense_layers, sparse_layers
from mtpcore.models.rope_conversion import ROPE_KEYS

__all__ = ["COGVLM", "PADDLEOCR", "QWEN2_VL", "QWEN3_VL", "QWEN3_VL_MOE"]


def _sections(config: Config) -> list[int] | None:
    """Return how many pairs turn with each of four axes of a position."""
    names = ("rope_parameters.mrope_section", "rope_scaling.mrope_section")
    found = config.get(*names, type=list[int])
    return None if found is None else [*found, 0, 0, 0, 0][:4]


_FFN_NORM = block_renames({"post_attention_layernorm.weight": "ffn_norm.weight"})

QWEN2_VL = Checkpoint(
    architectures=frozenset(
        {"Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"}
    ),
    defaults=(*STATED, ("rms_norm_eps", 1e-5), ("max_window_layers", 80), ("rope_theta", 1e6)),
    nested=("text_config",),
    prefixes=(("model.language_model.", "model."),),
    tensors=(*TABLES, *ATTENTION, *BIASES, *SWIGLU, *_FFN_NORM),
    dropped=("visual.*", "model.visual.*"),
    constants=CONSTANTS,
    metadata=(
        *DECODER,
        *ROPE_KEYS,
        ("{arch}.rope.dimension_sections", _sections),
        ("{arch}.attention.sliding_window", switched_window),
    ),
)


PADDLEOCR = replace(
    QWEN2_VL,
    architectures=frozenset({"PaddleOCRVLForConditionalGeneration"}),
    defaults=(
        *STATED,
        ("head_dim", 128),
        ("rms_norm_eps", 1e-5),
        ("rope_theta", 5e5),
        ("tie_word_embeddings", True),
    ),
    tensors=(*TABLES, *ATTENTION, *SWIGLU, *_FFN_NORM),
    dropped=(*QWEN2_VL.dropped, "mlp_AR.*"),
    constants=(*CONSTANTS, ("use_bias", (False,))),
    metadata=QWEN2_VL.metadata[:-1],
)


def _n_deepstack_layers(config: Config) -> int:
    found = config.get("vision_config.deepstack_visual_indexes", type=list[int])
    return len(found or ())


QWEN3_VL = replace(
    QWEN2_VL,
    architectures=frozenset({"Qwen3VLForConditionalGeneration"}),
    defaults=(*STATED, ("rms_norm_eps", 1e-6), ("head_dim", 128), ("rope_theta", 5e5)),
    tensors=(*TABLES, *ATTENTION, *HEAD_NORMS, *SWIGLU, *_FFN_NORM),
    constants=(
        *CONSTANTS,
        *((f"{at}.mrope_interleaved", (True,)) for at in ("rope_parameters", "rope_scaling")),
    ),
    metadata=(
        *DECODER,
        *ROPE_KEYS,
        ("{arch}.rope.dimension_sections", _sections),
        ("{arch}.n_deepstack_layers", _n_deepstack_layers),
    ),
)


def _by_outputs(of_inputs: bool) -> Callable[[TensorValues, Config], TensorValues]:
    """Return a change: an expert's matrix, of one row for each input, by outputs.

    Transformers 5 writes matrices by outputs; which a matrix is, its shape says.

    Parameters
    ----------
    of_inputs : bool
        Whether there are as many inputs as the model is wide, or as many outputs.
    """

    def change(values: TensorValues, config: Config) -> TensorValues:
        width = config.require("hidden_size", Count)
        return values.T if values.shape[0 if of_inputs else 1] == width else values

    return change


def _half(which: Callable[..., TensorValues]) -> Callable[[TensorValues, Config], TensorValues]:
    by_outputs = _by_outputs(True)
    return lambda values, config: which(by_outputs(values, config), config)


def _stack(source: str, tensor: str, change: Callable[..., TensorValues]) -> tuple[Rename, ...]:
    return block_renames({source: tensor}, change=change, is_stack=True)


QWEN3_VL_MOE = replace(
    QWEN3_VL,
    architectures=frozenset({"Qwen3VLMoeForConditionalGeneration"}),
    defaults=(*STATED, ("rms_norm_eps", 1e-6), ("rope_theta", 5e5)),
    tensors=(
        *TABLES[:2],
        replace(TABLES[2], optional=False),
        *ATTENTION,
        *HEAD_NORMS,
        *_FFN_NORM,
        *on_layers(
            sparse_layers,
            block_renames({"mlp.gate.weight": "ffn_gate_inp.weight"}),
            _stack("mlp.experts.gate_up_proj", "ffn_gate_exps.weight", _half(first_half)),
            _stack("mlp.experts.gate_up_proj", "ffn_up_exps.weight", _half(second_half)),
            _stack("mlp.experts.down_proj", "ffn_down_exps.weight", _by_outputs(False)),
        ),
        *on_layers(dense_layers, SWIGLU),
    ),
    constants=(*QWEN3_VL.constants, ("norm_topk_prob", (True,))),
    metadata=(
        *QWEN3_VL.metadata,
        *COUNTS,
        ("{arch}.expert_feed_forward_length", "moe_intermediate_size"),
    ),
)


def _of_rows(kind: str, mlp: str, attention: str) -> tuple[Rename, ...]:
    """Return the renames of the matrices that rows of text, or of an image, go through.

    ``mlp`` and ``attention`` are what the file's names have before their last words.
    """
    return block_renames(
        {
            f"self_attn.{kind}_expert_query_key_value.weight": f"{attention}qkv.weight",
            f"self_attn.{kind}_expert_dense.weight": f"{attention}output.weight",
            **{
                f"mlp.{kind}_mlp.{part}_proj.weight": f"{mlp}{part}.weight"
                for part in ("gate", "up", "down")
            },
        }
    )


COGVLM = Checkpoint(
    architectures=frozenset({"CogVLMForCausalLM"}),
    defaults=(("intermediate_size", None), ("rms_norm_eps", 1e-5)),
    tensors=(
        *TABLES,
        *block_renames({"input_layernorm.weight": "attn_norm.weight"}),
        *_FFN_NORM,
        *_of_rows("language", "ffn_", "attn_"),
        *_of_rows("vision", "vis_", "vis_attn_"),
    ),
    dropped=("model.vision.*", "model.layers.{n}.self_attn.rotary_emb.inv_freq"),
    constants=CONSTANTS,
    harmless=(("template_version", "how a text is asked about an image: the template says it"),),
    metadata=(
        *DECODER,
        *ROPE_KEYS,
        ("{arch}.vocab_size", "vocab_size"),
        ("{arch}.rope.dimension_count", head_width),
    ),
)
"""Its first generation; the second, of Llama 3, has fewer key heads and another rotation."""
