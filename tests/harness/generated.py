"""Small models of every family and tensor type, with random weights in rows of 256 values."""

from typing import NamedTuple

import numpy as np
from gguf import GGMLQuantizationType, quants

from mtpcore.gguf import write_model_file
from mtpcore.gguf.types import BLOCKS, block_type, dequantize

FAMILIES = ("llama", "qwen2", "qwen3", "glm4moe")
FLOATS = ("F32", "F16", "BF16")
QUANTISED = (
    *("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"),
)
NATIVE = FLOATS + QUANTISED


class Sizes(NamedTuple):
    """Of a model; rows of K types are whole where the first two widths are multiples of 256."""

    width: int = 256
    n_ff: int = 256
    n_heads: int = 4
    n_kv_heads: int = 2
    head_width: int = 64
    n_vocab: int = 96
    n_layers: int = 2
    n_experts: int = 4


FULL = Sizes()
TINY = Sizes(width=32, n_ff=32, head_width=8, n_vocab=40)
N_VOCAB, N_USED = FULL.n_vocab, 2
SPREAD = 0.07  # standard deviation of weights: hidden rows keep their size from layer to layer

# Where the float16 scales lie in blocks that the gguf package does not write.
_SCALES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "Q1_0": (0,),
    "Q2_0": (0,),
}


def random_matrix(rng, kind, *shape):
    """Return blocks uint8[..., row_bytes] of values spread by about SPREAD, any codes in them."""
    if kind not in (*_SCALES, "NVFP4"):
        values = rng.normal(0, SPREAD, shape).astype(np.float32)
        return quants.quantize(values, GGMLQuantizationType[kind]).view(np.uint8)
    n_values, n_bytes = BLOCKS[block_type(kind)]
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // n_values, n_bytes), np.uint8)
    if kind == "NVFP4":  # four scales of a byte: here from 1/64 to 1/32
        blocks[..., :4] = rng.integers(0x08, 0x10, (*blocks.shape[:-1], 4))
        return blocks.reshape(*shape[:-1], -1)

    def set_scales(scales):
        for at, scale in zip(_SCALES[kind], scales, strict=False):
            blocks[..., at : at + 2] = scale.astype(np.float16)[..., None].view(np.uint8)

    ones = np.ones(blocks.shape[:-1])
    set_scales([ones, 0 * ones])
    rows = blocks.reshape(*shape[:-1], -1)
    size = dequantize(rows, block_type(kind)).std()
    factors = rng.choice([-1, 1], ones.shape) * rng.uniform(0.5, 1.5, ones.shape) * SPREAD / size
    set_scales([factors, 4 * factors * rng.uniform(0.5, 1.5, ones.shape)])
    return rows


def write_generated(path, family, kind, seed=0, sizes=FULL):
    """Write a model whose matrices are of one type; ``glm4moe`` has experts and a head."""
    tensors = make_tensors(family, kind, sizes, seed)
    write_model_file(path, family, make_metadata(family, sizes), tensors, types_of(tensors, kind))
    return path


def types_of(tensors, kind):
    """Matrices are of the type wanted, vectors and routers float32, as converters write them."""
    return {name: kind for name, values in tensors.items() if values.dtype == np.uint8}


def make_tensors(family, kind, sizes=FULL, seed=0):
    """Return blocks of matrices, uint8, and float32 vectors by name."""
    rng = np.random.default_rng([seed, FAMILIES.index(family)])
    s, is_glm = sizes, family == "glm4moe"

    def matrix(*shape):
        return random_matrix(rng, kind, *shape)

    def vector(n, around=0.0):
        return (around + rng.normal(0, 0.2, n)).astype(np.float32)

    def swiglu(suffix, *stack):
        return {
            f"ffn_gate{suffix}.weight": matrix(*stack, s.n_ff, s.width),
            f"ffn_up{suffix}.weight": matrix(*stack, s.n_ff, s.width),
            f"ffn_down{suffix}.weight": matrix(*stack, s.width, s.n_ff),
        }

    made = {
        "token_embd.weight": matrix(s.n_vocab, s.width),
        "output_norm.weight": vector(s.width, 1),
        "output.weight": matrix(s.n_vocab, s.width),
    }
    for n in range(s.n_layers + is_glm):
        block = {
            "attn_norm.weight": vector(s.width, 1),
            "attn_output.weight": matrix(s.width, s.n_heads * s.head_width),
            "post_attention_norm.weight" if is_glm else "ffn_norm.weight": vector(s.width, 1),
        }
        for name, heads in (("q", s.n_heads), ("k", s.n_kv_heads), ("v", s.n_kv_heads)):
            block[f"attn_{name}.weight"] = matrix(heads * s.head_width, s.width)
            if family in ("qwen2", "glm4moe"):
                block[f"attn_{name}.bias"] = vector(heads * s.head_width)
        if family == "qwen3":
            block["attn_q_norm.weight"] = vector(s.head_width, 1)
            block["attn_k_norm.weight"] = vector(s.head_width, 1)
        if is_glm and n > 0:
            block["ffn_gate_inp.weight"] = vector((s.n_experts, s.width))
            block["exp_probs_b.bias"] = vector(s.n_experts)
            block |= swiglu("_exps", s.n_experts) | swiglu("_shexp")
        else:
            block |= swiglu("")
        if n == s.n_layers:
            block["nextn.eh_proj.weight"] = matrix(s.width, 2 * s.width)
            block["nextn.enorm.weight"] = vector(s.width, 1)
            block["nextn.hnorm.weight"] = vector(s.width, 1)
        made |= {f"blk.{n}.{name}": values for name, values in block.items()}
    return made


def make_metadata(family, sizes=FULL):
    is_glm = family == "glm4moe"
    made = {
        "block_count": sizes.n_layers + is_glm,
        "context_length": 512,
        "embedding_length": sizes.width,
        "feed_forward_length": sizes.n_ff,
        "attention.head_count": sizes.n_heads,
        "attention.head_count_kv": sizes.n_kv_heads,
        "attention.key_length": sizes.head_width,
        "attention.value_length": sizes.head_width,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
        "rope.dimension_count": sizes.head_width // 2 if is_glm else sizes.head_width,
    }
    if is_glm:
        made |= {
            "nextn_predict_layers": 1,
            "leading_dense_block_count": 1,
            "expert_count": sizes.n_experts,
            "expert_used_count": N_USED,
            "expert_weights_norm": True,
            "expert_weights_scale": 1.5,
        }
    return {f"{family}.{key}": value for key, value in made.items()}
