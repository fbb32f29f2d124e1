"""LiLiCorr's head of random weights as published, and its formulas in NumPy.

The witness follows the authors' code: it joins the features of all candidates of all slots, lets
them attend to each other, and walks greedily from the anchor.
"""

from collections.abc import Callable

import numpy as np

from harness.restated import norm, silu

N_CANDIDATES, N_LAYERS, N_HEADS, N_FACTORS = 4, 2, 2, 6
SCALE, VECTOR_EPS, EPS = 8.0, 1e-6, 1e-5
Weights = dict[str, np.ndarray]


def head_weights(random: Callable[..., np.ndarray], width: int, inner: int, size: int) -> Weights:
    """Return the head's weights by their published names, for a drafter ``width`` wide."""

    def linear(name: str, n_outputs: int, n_inputs: int) -> Weights:
        return {f"{name}.weight": random(n_outputs, n_inputs), f"{name}.bias": random(n_outputs)}

    made = {
        **(linear("token_proj", inner, width) if inner != width else {}),
        **linear("pass_hidden_proj", inner, width),
        **linear("context_proj", inner, width),
        "feature_mlp.0.weight": random(5, around=1),
        "feature_mlp.0.bias": random(5),
        **linear("feature_mlp.1", inner, 5),
        **linear("feature_mlp.3", inner, inner),
        "slot_embedding": random(1, 1, size - 1, 1, inner),
        "rank_embedding": random(1, 1, 1, N_CANDIDATES, inner),
        "relative_slot_bias": 3 * random(N_HEADS, 2 * size - 1),
        "same_slot_bias": 3 * random(N_HEADS),
        "output_norm.weight": random(inner, around=1),
        "anchor_norm.weight": random(inner, around=1),
        **linear("factor_input_proj", inner, 3 * inner),
        **{
            name: values
            for head in ("out_head", "in_head", "anchor_out_head")
            for name, values in linear(head, N_FACTORS, inner).items()
        },
    }
    for n in range(N_LAYERS):
        at = f"layers.{n}."
        made |= {
            at + "attn_norm.weight": random(inner, around=1),
            at + "attn.in_proj_weight": random(3 * inner, inner),
            at + "attn.in_proj_bias": random(3 * inner),
            **linear(at + "attn.out_proj", inner, inner),
            at + "mlp_norm.weight": random(inner, around=1),
            **linear(at + "mlp.0", 2 * inner, inner),
            **linear(at + "mlp.2", inner, 2 * inner),
        }
    return {f"lilicorr.{name}": values for name, values in made.items()}


def head_config(inner: int) -> dict[str, object]:
    """Return what ``dflash_config`` says of the head; 0 is as wide as the drafter."""
    return {
        "lilicorr_enabled": True,
        "lilicorr_candidate_topk": N_CANDIDATES,
        "lilicorr_hidden_size": inner,
        "lilicorr_num_layers": N_LAYERS,
        "lilicorr_num_heads": N_HEADS,
        "lilicorr_mlp_ratio": 2.0,
        "lilicorr_factor_dim": N_FACTORS,
        "lilicorr_vector_eps": VECTOR_EPS,
        "lilicorr_logit_scale": SCALE,
    }


def linear(w: Weights, name: str, x: np.ndarray) -> np.ndarray:
    """Return x times a matrix, plus its bias."""
    return x @ w[f"lilicorr.{name}.weight"].T + w[f"lilicorr.{name}.bias"]


def unit(x: np.ndarray) -> np.ndarray:
    """Return vectors of length 1."""
    return x / np.maximum(np.sqrt((x * x).sum(-1, keepdims=True)), VECTOR_EPS)


def features(log_p: np.ndarray) -> np.ndarray:
    """Return the five features of each candidate: [slots, k] -> [slots, k, 5]."""
    rank = np.broadcast_to(np.arange(N_CANDIDATES, dtype=np.float32), log_p.shape)
    best = log_p.max(1, keepdims=True)
    columns = [log_p, np.exp(log_p), log_p - best, rank / np.float32(N_CANDIDATES - 1), rank == 0]
    return np.stack(columns, axis=2)


def attended(w: Weights, n: int, x: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """Return what layer n's attention makes of all candidates [n, width], of these slots."""
    qkv = x @ w[f"lilicorr.layers.{n}.attn.in_proj_weight"].T
    qkv = qkv + w[f"lilicorr.layers.{n}.attn.in_proj_bias"]
    q, k, v = (part.reshape(len(x), N_HEADS, -1) for part in np.split(qkv, 3, axis=1))
    relative = w["lilicorr.relative_slot_bias"]
    size = (relative.shape[1] + 1) // 2
    apart = slots[:, None] - slots[None, :]
    heads = []
    for head in range(N_HEADS):
        bias = relative[head][apart + size - 1] + (apart == 0) * w["lilicorr.same_slot_bias"][head]
        scores = q[:, head] @ k[:, head].T / np.sqrt(q.shape[2])
        e = np.exp(scores + bias.astype(np.float32))  # the type that biases are added in
        heads.append((e / e.sum(1, keepdims=True)) @ v[:, head])
    return linear(w, f"layers.{n}.attn.out_proj", np.concatenate(heads, axis=1))


def walk(
    w: Weights, table: np.ndarray, logits: np.ndarray, hidden: np.ndarray, anchor: np.ndarray
) -> np.ndarray:
    """Return what each slot's token is chosen by, -inf for what is no candidate.

    ``logits`` [slots, tokens] and ``hidden`` [slots, width] are the block's, after its first row;
    ``anchor`` [width] is the projected row of the target that made the pending token.
    """
    log_p = logits - np.log(np.exp(logits - logits.max()).sum(1, keepdims=True)) - logits.max()
    tokens = np.argsort(-logits, axis=1, kind="stable")[:, :N_CANDIDATES]
    log_p = np.take_along_axis(log_p, tokens, axis=1)
    x = table[tokens]
    if "lilicorr.token_proj.weight" in w:
        x = linear(w, "token_proj", x)
    x = x + linear(w, "pass_hidden_proj", hidden)[:, None]
    f = features(log_p)
    centred = f - f.mean(-1, keepdims=True)
    f = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPS)
    f = f * w["lilicorr.feature_mlp.0.weight"] + w["lilicorr.feature_mlp.0.bias"]
    x = x + linear(w, "feature_mlp.3", silu(linear(w, "feature_mlp.1", f)))
    x = x + w["lilicorr.slot_embedding"][0, 0] + w["lilicorr.rank_embedding"][0, 0]
    slots = np.repeat(np.arange(len(logits)), N_CANDIDATES)
    x = x.reshape(len(slots), -1)
    for n in range(N_LAYERS):
        at = f"lilicorr.layers.{n}."
        x = x + attended(w, n, norm(x, w[at + "attn_norm.weight"]), slots)
        y = silu(linear(w, f"layers.{n}.mlp.0", norm(x, w[at + "mlp_norm.weight"])))
        x = x + linear(w, f"layers.{n}.mlp.2", y)
    x = norm(x, w["lilicorr.output_norm.weight"])
    a = norm(linear(w, "context_proj", anchor), w["lilicorr.anchor_norm.weight"])
    beside = np.broadcast_to(a, x.shape)
    factors = silu(linear(w, "factor_input_proj", np.concatenate([x, beside, x * beside], axis=1)))
    going, coming = (
        unit(linear(w, name, factors)).reshape(*tokens.shape, -1)
        for name in ("out_head", "in_head")
    )
    before, made = unit(linear(w, "anchor_out_head", a)), np.full(logits.shape, -np.inf)
    for slot, candidates in enumerate(tokens):
        scores = SCALE * coming[slot] @ before
        made[slot, candidates] = scores
        before = going[slot, scores.argmax()]
    return made
