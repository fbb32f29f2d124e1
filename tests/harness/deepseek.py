"""Random models of DeepSeek's variants, and a restatement of their formulas in float64.

The witness follows the papers and the code published beside the checkpoints: attention with keys
and values made for every head, all rows at once.
"""

from typing import NamedTuple

import numpy as np

from harness.restated import EPS, RandomWeights, block_of, expert, joined, norm, swiglu

D, H, RANK, Q_RANK, PLAIN, N_ROT, DV, V = 24, 4, 12, 10, 6, 4, 5, 40
N_TRUNK, N_EXPERTS, N_USED, FF, BASE = 3, 8, 3, 10, 100.0
FACTOR, N_CTX, GROWTH_LENGTH = 8.0, 64, 9


class Yarn(NamedTuple):
    """The two settings of a configuration; None where it has none."""

    mscale: float | None
    mscale_all_dim: float | None


class Variant(NamedTuple):
    """What files of the family differ in."""

    low_rank_q: bool = True
    split: bool = True  # matrices of keys and values for each head, or one of both
    yarn: Yarn | None = None
    own: bool = False  # the head has tables and norm of its own
    tied: bool = False
    gate: str = "sigmoid"
    n_groups: int = 4
    n_groups_used: int = 2
    normalise: bool = True
    scale: float = 2.5
    says_gate: bool = True
    fused: bool = False  # one stack for the experts' gate and up
    shared: bool = True
    growth: float = 0.0  # of queries, with their position
    published: str = "DeepseekV3ForCausalLM"


V2 = Variant(gate="softmax", normalise=False, scale=1.75, published="DeepseekV2ForCausalLM")
VARIANTS = {
    "V3": Variant(),
    "V3, own tables": Variant(own=True),
    "V3, YaRN": Variant(yarn=Yarn(1.0, 1.0)),
    "V3, YaRN, old file": Variant(yarn=Yarn(1.0, 1.0), split=False),
    "two mscales": Variant(yarn=Yarn(0.8, 1.3)),
    "no mscale": Variant(yarn=Yarn(None, None)),
    "V2": V2._replace(yarn=Yarn(0.707, 0.707)),
    "V2-Lite": V2._replace(
        low_rank_q=False, n_groups=1, n_groups_used=1, yarn=Yarn(0.707, 0.707), scale=1.0
    ),
    "V2-Lite, old file": V2._replace(
        low_rank_q=False, n_groups=1, n_groups_used=1, split=False, says_gate=False, scale=1.0
    ),
    "GLM-4.7-Flash": Variant(
        n_groups=1, n_groups_used=1, says_gate=False, published="Glm4MoeLiteForCausalLM"
    ),
    "fused, tied": Variant(fused=True, tied=True, shared=False),
    "queries that grow": Variant(growth=0.5),
}


def make_weights(c, seed=0):
    """Return weights as checkpoints hold them: ``attn_kv_b`` [heads * (plain + value), rank]."""
    random = RandomWeights(seed)
    made = random.tables(V, D, c.tied)
    for n in range(N_TRUNK + 1):
        block = {
            "attn_norm.weight": random(D, around=1),
            "ffn_norm.weight": random(D, around=1),
            "attn_kv_a_mqa.weight": random(RANK + N_ROT, D),
            "attn_kv_a_norm.weight": random(RANK, around=1),
            "attn_kv_b.weight": random(H * (PLAIN + DV), RANK),
            "attn_output.weight": random(D, H * DV),
        }
        if c.low_rank_q:
            block["attn_q_a.weight"] = random(Q_RANK, D)
            block["attn_q_a_norm.weight"] = random(Q_RANK, around=1)
            block["attn_q_b.weight"] = random(H * (PLAIN + N_ROT), Q_RANK)
        else:
            block["attn_q.weight"] = random(H * (PLAIN + N_ROT), D)
        if n == 0:
            block |= random.swiglu("", FF, D)
        else:
            block["ffn_gate_inp.weight"] = random(N_EXPERTS, D)
            if c.gate == "sigmoid":
                block["exp_probs_b.bias"] = random(N_EXPERTS)
            block |= random.swiglu("_exps", FF, D, N_EXPERTS)
            if c.shared:
                block |= random.swiglu("_shexp", FF, D)
        if n == N_TRUNK:
            block |= random.join(D)
            if c.own:
                block |= random.own_tables(V, D)
                block["nextn.shared_head_norm.weight"] = random(D, around=1)
        made |= {f"blk.{n}.{name}": value for name, value in block.items()}
    return made


def make_tensors(c, weights):
    """Return the file's tensors: keys and values apart for each head, experts in one stack."""
    made = dict(weights)
    for n in range(N_TRUNK + 1):
        if c.split:
            kv = made.pop(f"blk.{n}.attn_kv_b.weight").reshape(H, PLAIN + DV, RANK)
            made[f"blk.{n}.attn_k_b.weight"] = np.ascontiguousarray(kv[:, :PLAIN].swapaxes(1, 2))
            made[f"blk.{n}.attn_v_b.weight"] = np.ascontiguousarray(kv[:, PLAIN:])
        if c.fused and n:
            parts = [made.pop(f"blk.{n}.ffn_{s}_exps.weight") for s in ("gate", "up")]
            made[f"blk.{n}.ffn_gate_up_exps.weight"] = np.concatenate(parts, axis=1)
    return made


def make_metadata(c):
    made = {
        "block_count": N_TRUNK + 1,
        "nextn_predict_layers": 1,
        "context_length": 256,
        "embedding_length": D,
        "attention.head_count": H,
        "attention.head_count_kv": 1 if c.split else H,
        "attention.key_length": RANK + N_ROT if c.split else PLAIN + N_ROT,
        "attention.value_length": RANK if c.split else DV,
        "attention.kv_lora_rank": RANK,
        "attention.layer_norm_rms_epsilon": EPS,
        "rope.freq_base": BASE,
        "rope.dimension_count": N_ROT,
        "leading_dense_block_count": 1,
        "expert_count": N_EXPERTS,
        "expert_used_count": N_USED,
        "expert_weights_norm": c.normalise,
        "expert_weights_scale": c.scale,
        "expert_group_count": c.n_groups,
        "expert_group_used_count": c.n_groups_used,
    }
    if c.split:
        made["attention.key_length_mla"] = PLAIN + N_ROT
        made["attention.value_length_mla"] = DV
    if c.says_gate:
        made["expert_gating_func"] = {"softmax": 1, "sigmoid": 2}[c.gate]
    if c.growth:
        made["attention.temperature_scale"] = c.growth
        made["attention.temperature_length"] = GROWTH_LENGTH
    if c.yarn:
        made["rope.scaling.type"] = "yarn"
        made["rope.scaling.factor"] = FACTOR
        made["rope.scaling.original_context_length"] = N_CTX
        ours, all_dims = c.yarn
        if all_dims is not None:
            made["rope.scaling.yarn_log_multiplier"] = 0.1 * all_dims
            if ours != all_dims:
                made["rope.scaling.attn_factor"] = float(rise(ours) / rise(all_dims))
    return {f"deepseek2.{key}": value for key, value in made.items()}


def config_of(c):
    """Return ``config.json`` as transformers writes it."""
    made = {
        "architectures": [c.published],
        "first_k_dense_replace": 1,
        "hidden_size": D,
        "intermediate_size": FF,
        "kv_lora_rank": RANK,
        "max_position_embeddings": 256,
        "moe_intermediate_size": FF,
        "n_group": c.n_groups,
        "n_routed_experts": N_EXPERTS,
        "n_shared_experts": 1 if c.shared else None,
        "norm_topk_prob": c.normalise,
        "num_attention_heads": H,
        "num_experts_per_tok": N_USED,
        "num_hidden_layers": N_TRUNK,
        "num_key_value_heads": H,
        "q_lora_rank": Q_RANK if c.low_rank_q else None,
        "qk_nope_head_dim": PLAIN,
        "qk_rope_head_dim": N_ROT,
        "rms_norm_eps": EPS,
        "rope_theta": int(BASE),
        "routed_scaling_factor": c.scale,
        "scoring_func": c.gate,
        "tie_word_embeddings": c.tied,
        "topk_group": c.n_groups_used,
        "topk_method": "noaux_tc" if c.gate == "sigmoid" else "group_limited_greedy",
        "v_head_dim": DV,
        "vocab_size": V,
    }
    if c.yarn:
        made["rope_scaling"] = {
            "type": "yarn",
            "factor": FACTOR,
            "original_max_position_embeddings": N_CTX,
            "beta_fast": 32,
            "beta_slow": 1,
            **{name: value for name, value in c.yarn._asdict().items() if value is not None},
        }
    return made


PUBLISHED = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q": "self_attn.q_proj",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "ffn_gate_inp": "mlp.gate",
    **{f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
    **{f"ffn_{part}_shexp": f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")},
    **{f"nextn.{name}": name for name in ("eh_proj", "enorm", "hnorm", "embed_tokens")},
    "nextn.shared_head_head": "shared_head.head",
    "nextn.shared_head_norm": "shared_head.norm",
}
TABLES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def published(weights, n_blocks):
    """Return weights by the names and in the pieces of a published checkpoint."""
    made = {TABLES[name]: values for name, values in weights.items() if name in TABLES}
    for n in range(n_blocks):
        at, block = f"model.layers.{n}.", f"blk.{n}."
        for name in (name for name in weights if name.startswith(block)):
            stem, values = name.removeprefix(block).removesuffix(".weight"), weights[name]
            if stem == "exp_probs_b.bias":
                made[at + "mlp.gate.e_score_correction_bias"] = values
            elif stem.endswith("_exps"):
                part = stem.removeprefix("ffn_").removesuffix("_exps")
                made |= {f"{at}mlp.experts.{e}.{part}_proj.weight": x for e, x in enumerate(values)}
            else:
                made[f"{at}{PUBLISHED[stem]}.weight"] = values
    return made


# The witness


def rise(mscale):
    """DeepSeek's ``yarn_get_mscale``; files hold the product as float32."""
    return float(np.float32(0.1 * mscale)) * np.log(FACTOR) + 1.0


def frequencies(c):
    i = np.arange(0, N_ROT, 2)
    plain = BASE ** -(i / N_ROT)
    if not c.yarn:
        return plain
    bounds = [N_ROT * np.log(N_CTX / (t * 2 * np.pi)) / (2 * np.log(BASE)) for t in (32, 1)]
    low, high = max(np.floor(bounds[0]), 0), min(np.ceil(bounds[1]), N_ROT - 1)
    ramp = np.clip((np.arange(N_ROT // 2) - low) / max(high - low, 0.001), 0, 1)
    return plain / FACTOR * ramp + plain * (1 - ramp)


def rotate(x, places, c):
    """Turn neighbours of [n, heads, N_ROT] as complex numbers."""
    magnitude = 1.0
    if c.yarn:
        magnitude = 1 + 0.1 * np.log(FACTOR)
        if c.yarn.mscale_all_dim is not None:
            magnitude = float(np.float32(rise(c.yarn.mscale) / rise(c.yarn.mscale_all_dim)))
    turn = magnitude * np.exp(1j * places[:, None] * frequencies(c))[:, None]
    turned = (x[..., ::2] + 1j * x[..., 1::2]) * turn
    return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)


def attend(b, a, places, c):
    n = len(a)
    if c.low_rank_q:
        q = norm(a @ b["attn_q_a.weight"].T, b["attn_q_a_norm.weight"]) @ b["attn_q_b.weight"].T
    else:
        q = a @ b["attn_q.weight"].T
    q = q.reshape(n, H, PLAIN + N_ROT)
    q = np.concatenate([q[..., :PLAIN], rotate(q[..., PLAIN:], places, c)], axis=-1)
    q *= 1 + c.growth * np.log(1 + places // GROWTH_LENGTH)[:, None, None]
    both = a @ b["attn_kv_a_mqa.weight"].T
    turned = rotate(both[:, None, RANK:], places, c)
    kv = norm(both[:, :RANK], b["attn_kv_a_norm.weight"]) @ b["attn_kv_b.weight"].T
    kv = kv.reshape(n, H, PLAIN + DV)
    k = np.concatenate([kv[..., :PLAIN], np.repeat(turned, H, axis=1)], axis=-1)
    scale = (PLAIN + N_ROT) ** -0.5
    if c.yarn and c.yarn.mscale_all_dim:
        scale *= rise(c.yarn.mscale_all_dim) ** 2
    p = np.exp(scale * np.einsum("ihd,jhd->hij", q, k)) * np.tri(n)
    p /= p.sum(-1, keepdims=True)
    y = np.einsum("hij,jhd->ihd", p, kv[..., PLAIN:]).reshape(n, -1)
    return y @ b["attn_output.weight"].T


def mixture(b, f, c):
    z = b["ffn_gate_inp.weight"] @ f
    if c.gate == "softmax":
        gates = score = np.exp(z) / np.exp(z).sum()
        worth = score.reshape(c.n_groups, -1).max(axis=1)
    else:
        gates = 1 / (1 + np.exp(-z))
        score = gates + b["exp_probs_b.bias"]
        worth = np.sort(score.reshape(c.n_groups, -1), axis=1)[:, -2:].sum(axis=1)
    kept = np.argsort(-worth)[: c.n_groups_used]
    group = np.arange(N_EXPERTS) // (N_EXPERTS // c.n_groups)
    chosen = np.argsort(-np.where(np.isin(group, kept), score, -np.inf))[:N_USED]
    shares = gates[chosen] / (gates[chosen].sum() if c.normalise else 1) * c.scale
    y = np.zeros(D)
    for e, share in zip(chosen, shares, strict=True):
        y += share * expert(b, e, f)
    if c.shared:
        y += swiglu(b, f, "_shexp")
    return y


def run_block(w, n, x, places, c):
    b = block_of(w, n)
    x = x + attend(b, norm(x, b["attn_norm.weight"]), places, c)
    f = norm(x, b["ffn_norm.weight"])
    if "ffn_gate.weight" in b:
        return x + swiglu(b, f)
    return x + np.stack([mixture(b, row, c) for row in f])


def witness(c, weights, tokens):
    """Return logits and hidden rows of the trunk, and those of the head over all true pairs."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    output = w.get("output.weight", w["token_embd.weight"])
    places = np.arange(len(tokens))
    x = w["token_embd.weight"][tokens]
    for n in range(N_TRUNK):
        x = run_block(w, n, x, places, c)
    hidden = norm(x, w["output_norm.weight"])

    nextn = f"blk.{N_TRUNK}.nextn."
    table = w.get(nextn + "embed_tokens.weight", w["token_embd.weight"])
    y = joined(w, N_TRUNK, table, tokens[1:], hidden[:-1])
    y = run_block(w, N_TRUNK, y, places[1:], c)
    u = norm(y, w.get(nextn + "shared_head_norm.weight", w["output_norm.weight"]))
    logits = u @ w.get(nextn + "shared_head_head.weight", output).T
    trunk = {"logits": hidden @ output.T, "hidden": hidden, "residual": x}
    return trunk, {"logits": logits, "hidden": u, "residual": y}
