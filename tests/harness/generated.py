"""Small models of every family and tensor type, with random weights in rows of 256 values."""

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from mtpcore.gguf import write_model_file

FAMILIES = ("llama", "qwen2", "qwen3", "glm4moe")
NATIVE = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K")

WIDTH, N_HEADS, N_KV_HEADS, HEAD_WIDTH, N_FF, N_VOCAB = 256, 4, 2, 64, 256, 96
N_LAYERS, N_EXPERTS, N_USED = 2, 4, 2
SPREAD = 0.07  # standard deviation of weights: hidden rows keep their size from layer to layer

# Where the float16 scales lie in blocks that the gguf package reads but does not write.
_SCALES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}


def random_matrix(rng, kind, *shape):
    """Return blocks uint8[..., row_bytes] of values spread by about SPREAD, any codes in them."""
    type_ = GGMLQuantizationType[kind]
    if kind not in _SCALES:
        values = rng.normal(0, SPREAD, shape).astype(np.float32)
        return quants.quantize(values, type_).view(np.uint8)
    n_values, n_bytes = GGML_QUANT_SIZES[type_]
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // n_values, n_bytes), np.uint8)

    def set_scales(scales):
        for at, scale in zip(_SCALES[kind], scales, strict=False):
            blocks[..., at : at + 2] = scale.astype(np.float16)[..., None].view(np.uint8)

    ones = np.ones(blocks.shape[:-1])
    set_scales([ones, 0 * ones])
    rows = blocks.reshape(*shape[:-1], -1)
    size = quants.dequantize(rows, type_).std()
    factors = rng.choice([-1, 1], ones.shape) * rng.uniform(0.5, 1.5, ones.shape) * SPREAD / size
    set_scales([factors, 4 * factors * rng.uniform(0.5, 1.5, ones.shape)])
    return rows


def write_generated(path, family, kind, seed=0):
    """Write a model whose matrices are of one type; ``glm4moe`` has experts and a head."""
    rng = np.random.default_rng([seed, FAMILIES.index(family)])
    write_model_file(path, family, _metadata(family), _tensors(rng, family, kind), _types(kind))
    return path


class _types(dict):
    """Vectors are float32, matrices of the type wanted, routers float32 as converters write."""

    def __init__(self, kind):
        self.kind = kind

    def get(self, name, default):
        vector = "norm" in name or name.endswith("bias") or "ffn_gate_inp" in name
        return default if vector else self.kind


def _tensors(rng, family, kind):
    def matrix(*shape):
        return random_matrix(rng, kind, *shape)

    def vector(n, around=0.0):
        return (around + rng.normal(0, 0.2, n)).astype(np.float32)

    def swiglu(suffix, *stack):
        return {
            f"ffn_gate{suffix}.weight": matrix(*stack, N_FF, WIDTH),
            f"ffn_up{suffix}.weight": matrix(*stack, N_FF, WIDTH),
            f"ffn_down{suffix}.weight": matrix(*stack, WIDTH, N_FF),
        }

    is_glm = family == "glm4moe"
    made = {
        "token_embd.weight": matrix(N_VOCAB, WIDTH),
        "output_norm.weight": vector(WIDTH, 1),
        "output.weight": matrix(N_VOCAB, WIDTH),
    }
    for n in range(N_LAYERS + is_glm):
        block = {
            "attn_norm.weight": vector(WIDTH, 1),
            "attn_output.weight": matrix(WIDTH, N_HEADS * HEAD_WIDTH),
            "post_attention_norm.weight" if is_glm else "ffn_norm.weight": vector(WIDTH, 1),
        }
        for name, heads in (("q", N_HEADS), ("k", N_KV_HEADS), ("v", N_KV_HEADS)):
            block[f"attn_{name}.weight"] = matrix(heads * HEAD_WIDTH, WIDTH)
            if family in ("qwen2", "glm4moe"):
                block[f"attn_{name}.bias"] = vector(heads * HEAD_WIDTH)
        if family == "qwen3":
            block["attn_q_norm.weight"] = vector(HEAD_WIDTH, 1)
            block["attn_k_norm.weight"] = vector(HEAD_WIDTH, 1)
        if is_glm and n > 0:
            block["ffn_gate_inp.weight"] = vector((N_EXPERTS, WIDTH))
            block["exp_probs_b.bias"] = vector(N_EXPERTS)
            block |= swiglu("_exps", N_EXPERTS) | swiglu("_shexp")
        else:
            block |= swiglu("")
        if n == N_LAYERS:
            block["nextn.eh_proj.weight"] = matrix(WIDTH, 2 * WIDTH)
            block["nextn.enorm.weight"] = vector(WIDTH, 1)
            block["nextn.hnorm.weight"] = vector(WIDTH, 1)
        made |= {f"blk.{n}.{name}": values for name, values in block.items()}
    return made


def _metadata(family):
    is_glm = family == "glm4moe"
    made = {
        "block_count": N_LAYERS + is_glm,
        "context_length": 512,
        "embedding_length": WIDTH,
        "feed_forward_length": N_FF,
        "attention.head_count": N_HEADS,
        "attention.head_count_kv": N_KV_HEADS,
        "attention.key_length": HEAD_WIDTH,
        "attention.value_length": HEAD_WIDTH,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
        "rope.dimension_count": HEAD_WIDTH // 2 if is_glm else HEAD_WIDTH,
    }
    if is_glm:
        made |= {
            "nextn_predict_layers": 1,
            "leading_dense_block_count": 1,
            "expert_count": N_EXPERTS,
            "expert_used_count": N_USED,
            "expert_weights_norm": True,
            "expert_weights_scale": 1.5,
        }
    return {f"{family}.{key}": value for key, value in made.items()}
