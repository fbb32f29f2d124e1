"""Small models with experts, latent attention, windows, states and heads, in every tensor type.

As ``harness.generated``: random weights in rows of 256 values.
"""

import numpy as np

from harness.generated import FULL, N_USED, make_metadata, random_matrix, types_of, write_generated
from mtpcore.gguf import write_model_file

OTHERS = ("qwen3moe", "mimo", "mimo2", "deepseek2", "qwen35")
DENSE = ("mimo", "qwen35")
EAGLE3, DFLASH, PEAGLE = "eagle3", "dflash", "peagle"
DRAFTERS = (EAGLE3, DFLASH, PEAGLE)  # in files of their own, beside a llama
N_HEADS = {"mimo": 1, "mimo2": 2, "deepseek2": 1, "qwen35": 1}
RANK, ROTATED, VALUE, WINDOW, N_DRAFT = 256, 32, 64, 24, 64
N_KEYS, N_VALUES, KERNEL = 2, 4, 4  # of a hybrid's first layer, with heads as wide as attention's


def write_family(path, family, kind, seed=0):
    """Write a model of any family but the drafters; its matrices are of one type."""
    if family not in OTHERS:
        return write_generated(path, family, kind, seed)
    tensors = _tensors(family, kind, np.random.default_rng([seed, 90, OTHERS.index(family)]))
    write_model_file(path, family, _metadata(family), tensors, types_of(tensors, kind))
    return path


def write_drafter(path, architecture, kind):
    """Write a drafter for a generated llama; it reads the inputs of its layers."""
    rng, s = np.random.default_rng(91), FULL
    tensors = {
        "fc.weight": random_matrix(rng, kind, s.width, 3 * s.width),
        "output_norm.weight": _vector(rng, s.width, 1),
    }
    metadata = make_metadata("llama") | {
        "llama.block_count": 1,
        "llama.vocab_size": s.n_vocab,
        "llama.target_layers": [0, 1, 1],
        "llama.target_hidden_size": s.width,
        "tokenizer.ggml.mask_token_id": s.n_vocab - 2,
    }
    if architecture != EAGLE3:
        metadata["llama.block_size"] = 8
    if architecture == DFLASH:
        metadata["llama.attention.causal"] = False
    write = _add_block if architecture == DFLASH else _add_fused
    write(tensors, rng, kind)
    if architecture == PEAGLE:
        tensors["mask_hidden.weight"] = _vector(rng, 3 * s.width)
    metadata = {key.replace("llama.", f"{architecture}."): v for key, v in metadata.items()}
    write_model_file(path, architecture, metadata, tensors, types_of(tensors, kind))
    return path


def _add_fused(tensors, rng, kind):
    """Add a layer of a token and a row beside it, which drafts a part of the vocabulary."""
    s = FULL
    tensors |= {
        "output.weight": random_matrix(rng, kind, N_DRAFT, s.width),
        "d2t": np.sort(rng.permutation(s.n_vocab)[:N_DRAFT]).astype(np.int64),
        **{f"blk.0.{name}": v for name, v in _attention(rng, kind, 2 * s.width).items()},
        **{f"blk.0.{name}": v for name, v in _swiglu(rng, kind, "").items()},
        "blk.0.attn_norm_2.weight": _vector(rng, s.width, 1),
        "blk.0.ffn_norm.weight": _vector(rng, s.width, 1),
    }


def _add_block(tensors, rng, kind):
    """Add a layer whose rows see a whole block, and the target's fused rows before it."""
    s = FULL
    tensors |= {
        "enc.output_norm.weight": _vector(rng, s.width, 1),
        **{f"blk.0.{name}": v for name, v in _attention(rng, kind, s.width).items()},
        **{f"blk.0.{name}": v for name, v in _swiglu(rng, kind, "").items()},
        "blk.0.attn_q_norm.weight": _vector(rng, s.head_width, 1),
        "blk.0.attn_k_norm.weight": _vector(rng, s.head_width, 1),
        "blk.0.ffn_norm.weight": _vector(rng, s.width, 1),
    }


def _vector(rng, n, around=0.0):
    return (around + rng.normal(0, 0.2, n)).astype(np.float32)


def _swiglu(rng, kind, suffix, *stack):
    s = FULL
    return {
        f"ffn_gate{suffix}.weight": random_matrix(rng, kind, *stack, s.n_ff, s.width),
        f"ffn_up{suffix}.weight": random_matrix(rng, kind, *stack, s.n_ff, s.width),
        f"ffn_down{suffix}.weight": random_matrix(rng, kind, *stack, s.width, s.n_ff),
    }


def _attention(rng, kind, width):
    s = FULL
    heads = {"q": s.n_heads, "k": s.n_kv_heads, "v": s.n_kv_heads}
    made = {
        f"attn_{name}.weight": random_matrix(rng, kind, n * s.head_width, width)
        for name, n in heads.items()
    }
    made["attn_norm.weight"] = _vector(rng, s.width, 1)
    made["attn_output.weight"] = random_matrix(rng, kind, s.width, s.n_heads * s.head_width)
    return made


def _latent(rng, kind):
    s = FULL
    return {
        "attn_norm.weight": _vector(rng, s.width, 1),
        "attn_q.weight": random_matrix(rng, kind, s.n_heads * (RANK + ROTATED), s.width),
        "attn_kv_a_mqa.weight": random_matrix(rng, kind, RANK + ROTATED, s.width),
        "attn_kv_a_norm.weight": _vector(rng, RANK, 1),
        "attn_k_b.weight": random_matrix(rng, kind, s.n_heads, RANK, RANK),
        "attn_v_b.weight": random_matrix(rng, kind, s.n_heads, VALUE, RANK),
        "attn_output.weight": random_matrix(rng, kind, s.width, s.n_heads * VALUE),
    }


def _delta_net(rng, kind):
    s = FULL
    values = N_VALUES * s.head_width
    channels = 2 * N_KEYS * s.head_width + values
    return {
        "attn_norm.weight": _vector(rng, s.width, 1),
        "attn_qkv.weight": random_matrix(rng, kind, channels, s.width),
        "attn_gate.weight": random_matrix(rng, kind, values, s.width),
        "ssm_alpha.weight": random_matrix(rng, kind, N_VALUES, s.width),
        "ssm_beta.weight": random_matrix(rng, kind, N_VALUES, s.width),
        "ssm_conv1d.weight": rng.normal(0, 0.5, (channels, KERNEL)).astype(np.float32),
        "ssm_dt.bias": _vector(rng, N_VALUES),
        "ssm_a": -rng.uniform(0.1, 1.0, N_VALUES).astype(np.float32),
        "ssm_norm.weight": _vector(rng, s.head_width, 1),
        "ssm_out.weight": random_matrix(rng, kind, s.width, values),
    }


def _gated_attention(rng, kind):
    s = FULL
    made = _attention(rng, kind, s.width)
    made["attn_q.weight"] = random_matrix(rng, kind, 2 * s.n_heads * s.head_width, s.width)
    return made | {f"attn_{x}_norm.weight": _vector(rng, s.head_width, 1) for x in "qk"}


def _block(family, kind, rng, n):
    s, in_head, norm = FULL, n >= FULL.n_layers, "ffn_norm.weight"
    if family == "qwen35":
        made = _gated_attention(rng, kind) if n else _delta_net(rng, kind)
        norm = "post_attention_norm.weight"
    else:
        made = _latent(rng, kind) if family == "deepseek2" else _attention(rng, kind, s.width)
    made[norm] = _vector(rng, s.width, 1)
    if family == "qwen3moe":
        made |= {f"attn_{x}_norm.weight": _vector(rng, s.head_width, 1) for x in "qk"}
    if family == "mimo":
        heads = {"q": s.n_heads, "k": s.n_kv_heads, "v": s.n_kv_heads}
        made |= {f"attn_{x}.bias": _vector(rng, k * s.head_width) for x, k in heads.items()}
    if family == "mimo2":
        made["attn_qkv.weight"] = np.concatenate([made.pop(f"attn_{x}.weight") for x in "qkv"])
        if n:
            made["attn_sinks.weight"] = _vector(rng, s.n_heads, 1)
    if n and family not in DENSE and not (in_head and family == "mimo2"):
        made["ffn_gate_inp.weight"] = _vector(rng, (s.n_experts, s.width))
        made |= _swiglu(rng, kind, "_exps", s.n_experts)
        if family != "qwen3moe":
            made["exp_probs_b.bias"] = _vector(rng, s.n_experts)
        if family == "deepseek2":
            made |= _swiglu(rng, kind, "_shexp")
    else:
        made |= _swiglu(rng, kind, "")
    if in_head:
        made["nextn.eh_proj.weight"] = random_matrix(rng, kind, s.width, 2 * s.width)
        made["nextn.enorm.weight"] = _vector(rng, s.width, 1)
        made["nextn.hnorm.weight"] = _vector(rng, s.width, 1)
    return made


def _tensors(family, kind, rng):
    s = FULL
    made = {
        "token_embd.weight": random_matrix(rng, kind, s.n_vocab, s.width),
        "output_norm.weight": _vector(rng, s.width, 1),
        "output.weight": random_matrix(rng, kind, s.n_vocab, s.width),
    }
    for n in range(s.n_layers + N_HEADS.get(family, 0)):
        made |= {f"blk.{n}.{name}": v for name, v in _block(family, kind, rng, n).items()}
    return made


def _metadata(family):
    n_heads = N_HEADS.get(family, 0)
    made = {key.removeprefix("llama."): v for key, v in make_metadata("llama").items()}
    made |= {"block_count": FULL.n_layers + n_heads, "nextn_predict_layers": n_heads}
    if family not in DENSE:
        made |= {"expert_count": FULL.n_experts, "expert_used_count": N_USED}
    if family == "mimo2":
        near = [n > 0 for n in range(FULL.n_layers + n_heads)]
        made |= {
            "attention.sliding_window": WINDOW,
            "attention.sliding_window_pattern": near,
            "attention.head_count_kv": [FULL.n_kv_heads] * len(near),
            "rope.dimension_count": FULL.head_width // 2,
        }
    if family == "qwen35":
        made |= {
            "attention.recurrent_layers": [n == 0 for n in range(FULL.n_layers + n_heads)],
            "rope.dimension_count": FULL.head_width // 4,
            "rope.dimension_sections": [3, 3, 2, 0],
            "ssm.conv_kernel": KERNEL,
            "ssm.state_size": FULL.head_width,
            "ssm.group_count": N_KEYS,
            "ssm.time_step_rank": N_VALUES,
            "ssm.inner_size": N_VALUES * FULL.head_width,
        }
    if family == "deepseek2":
        made |= {
            "attention.head_count_kv": 1,
            "attention.key_length": RANK + ROTATED,
            "attention.value_length": RANK,
            "attention.key_length_mla": RANK + ROTATED,
            "attention.value_length_mla": VALUE,
            "attention.kv_lora_rank": RANK,
            "rope.dimension_count": ROTATED,
            "leading_dense_block_count": 1,
        }
    return {f"{family}.{key}": value for key, value in made.items()}
