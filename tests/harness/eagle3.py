"""EAGLE-3 heads of random weights as checkpoints are published, and their formulas in NumPy.

The witness works on a whole text at once, in float64, on weights by their published names without
prefix and ``.weight``.
"""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness.generated import TINY, make_metadata, make_tensors, types_of
from harness.published import tokenizer, write_checkpoint
from harness.restated import EPS, norm, silu
from harness.trunks import Config, inverse_frequencies, rotate
from mtpcore.conversion import convert
from mtpcore.gguf import write_model_file

SIZES = TINY._replace(n_layers=6)
N_VOCAB, WIDTH, N_FF, N_DRAFT = SIZES.n_vocab, SIZES.width, 20, 24
HEADS = {"n_heads": 4, "n_kv_heads": 2, "head_width": 8, "rope_base": 10000.0}
LAYERS = "eagle_aux_hidden_state_layer_ids"
SCALINGS = {
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn, not rounded": {
        "rope_type": "yarn",
        "factor": 8.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": 64,
        "truncate": False,
    },
}


class Variant(NamedTuple):
    """What published heads differ in; ``layers`` None: the configuration does not name them.

    The last three are the target's.
    """

    architecture: str = "LlamaForCausalLMEagle3"
    prefix: str = "midlayer."
    width: int = WIDTH
    n_draft: int = N_DRAFT
    says_n_draft: bool = True
    layers: tuple[int, ...] | None = None
    nested: str = ""
    own_table: bool = False
    own_head: bool = True
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    qk_norm: bool = False
    biases: bool = False
    scaling: str = ""
    target_width: int = WIDTH
    n_vocab: int = N_VOCAB
    n_layers: int = SIZES.n_layers


VARIANTS = {
    "reference": Variant(architecture="LlamaForCausalLM"),
    "SpecForge": Variant(layers=(1, 3, 4), nested="eagle_config"),
    "vLLM": Variant("Eagle3LlamaForCausalLM", "layers.0.", layers=(0, 2, 5)),
    "speculators": Variant(
        "Eagle3Speculator",
        "layers.0.",
        nested="transformer_layer_config",
        norm_before_residual=True,
        own_table=True,
    ),
    "speculators' draft model": Variant("Eagle3DraftModel", "layers.0.", norm_before_residual=True),
    "norm before fc": Variant(norm_before_fc=True),
    "both norms": Variant(norm_before_fc=True, norm_before_residual=True),
    "a norm for each tap": Variant(fc_norm=True),
    "norm_output": Variant(norm_output=True),
    "3.1": Variant(
        "Eagle3Speculator",
        "layers.0.",
        nested="transformer_layer_config",
        layers=(1, 3, SIZES.n_layers),
        fc_norm=True,
        norm_output=True,
        qk_norm=True,
    ),
    "every token": Variant(n_draft=N_VOCAB),
    "every token, unsaid": Variant(n_draft=N_VOCAB, says_n_draft=False),
    "reference, unsaid": Variant("LlamaForCausalLM", n_draft=N_VOCAB, says_n_draft=False),
    "the target's head": Variant(n_draft=N_VOCAB, own_head=False),
    "another width": Variant(width=24, own_table=True),
    "llama3 rotation": Variant(scaling="llama3"),
    "four layers": Variant(layers=(0, 1, 2, 3)),
    "biases": Variant("LlamaEagle3DraftModel", "model.layers.0.", biases=True),
    "gpt-oss' rotation": Variant(scaling="yarn, not rounded"),
}


def layers_of(c: Variant) -> list[int]:
    return list(c.layers or (2, c.n_layers // 2, c.n_layers - 3))


def weights_of(c: Variant, seed: int = 0) -> dict[str, np.ndarray]:
    """Return random weights by their published names without prefix."""
    rng = np.random.default_rng(seed)

    def random(*shape: int, around: float = 0.0) -> np.ndarray:
        return (around + rng.normal(0, 0.3, shape)).astype(np.float32)

    d, n_taps = c.width, len(layers_of(c))
    q, kv = HEADS["n_heads"] * HEADS["head_width"], HEADS["n_kv_heads"] * HEADS["head_width"]
    made = {
        "fc": random(d, n_taps * c.target_width),
        "input_layernorm": random(d, around=1),
        "hidden_norm": random(d, around=1),
        "self_attn.q_proj": random(q, 2 * d),
        "self_attn.k_proj": random(kv, 2 * d),
        "self_attn.v_proj": random(kv, 2 * d),
        "self_attn.o_proj": random(d, q),
        "post_attention_layernorm": random(d, around=1),
        "mlp.gate_proj": random(N_FF, d),
        "mlp.up_proj": random(N_FF, d),
        "mlp.down_proj": random(d, N_FF),
        "norm": random(d, around=1),
    }
    if c.norm_before_fc:
        made["input_norm"] = random(n_taps * c.target_width, around=1)
    if c.fc_norm:
        made |= {f"fc_norm.{i}": random(c.target_width, around=1) for i in range(n_taps)}
    if c.qk_norm:
        made |= {f"self_attn.{x}_norm": random(HEADS["head_width"], around=1) for x in "qk"}
    if c.biases:
        matrices = [name for name in made if name.endswith("_proj")]
        made |= {f"{name}.bias": random(len(made[name])) for name in matrices}
    if c.own_table:
        made["embed_tokens"] = random(c.n_vocab, d)
    if c.own_head:
        made["lm_head"] = random(c.n_draft, d)
    if c.n_draft < c.n_vocab:
        ids = np.sort(rng.permutation(c.n_vocab)[: c.n_draft])
        made["d2t"] = ids - np.arange(c.n_draft)
        made["t2d"] = np.isin(np.arange(c.n_vocab), ids)
    return made


def config_of(c: Variant) -> dict[str, object]:
    """Return ``config.json``."""
    layer = {
        "hidden_size": c.width,
        "intermediate_size": N_FF,
        "max_position_embeddings": 512,
        "num_attention_heads": HEADS["n_heads"],
        "num_key_value_heads": HEADS["n_kv_heads"],
        "head_dim": HEADS["head_width"],
        "num_hidden_layers": 1,
        "rms_norm_eps": EPS,
        "rope_theta": 10000,
        "vocab_size": c.n_vocab,
        "rope_scaling": SCALINGS.get(c.scaling),
    }
    by_output = c.nested == "eagle_config"
    inner = {LAYERS: [layer - by_output for layer in c.layers]} if c.layers else {}
    made: dict[str, object] = {
        "architectures": [c.architecture],
        "draft_vocab_size": c.n_draft,
        "norm_before_residual": c.norm_before_residual,
        "norm_before_fc": c.norm_before_fc,
        "fc_norm": c.fc_norm,
        "norm_output": c.norm_output,
    }
    if not c.says_n_draft:
        del made["draft_vocab_size"]
    if c.width != c.target_width:
        made["target_hidden_size"] = c.target_width
    if c.nested == "transformer_layer_config":
        return made | {c.nested: layer} | inner
    return made | layer | ({c.nested: inner} if c.nested else inner)


def tensors_of(c: Variant, seed: int = 0) -> dict[str, np.ndarray]:
    """Return the weights by the names of a checkpoint."""
    outer = ("fc", "norm", "input_norm", "embed_tokens", "lm_head")
    outer += tuple(f"fc_norm.{i}" for i in range(len(layers_of(c))))
    named = {}
    for name, values in weights_of(c, seed).items():
        if name in ("d2t", "t2d"):
            named[name] = values
        elif name.endswith("bias"):
            named[c.prefix + name] = values
        else:
            named[f"{'' if name in outer else c.prefix}{name}.weight"] = values
    return named


def write_head(folder: Path, c: Variant, seed: int = 0) -> Path:
    """Write a head's checkpoint and convert it; return the model file."""
    return convert_head(folder, c, config_of(c), tensors_of(c, seed))


def convert_head(
    folder: Path, c: Variant, config: dict[str, object], tensors: dict[str, np.ndarray]
) -> Path:
    """Convert a checkpoint of such a configuration and tensors, beside a target's."""
    source = write_checkpoint(folder / "head", config, tensors)
    target = folder / "target"
    target.mkdir(exist_ok=True)
    sizes = {
        "num_hidden_layers": c.n_layers,
        "hidden_size": c.target_width,
        "vocab_size": c.n_vocab,
    }
    (target / "config.json").write_text(json.dumps({"architectures": ["Any"], **sizes}))
    (target / "tokenizer.json").write_text(json.dumps(tokenizer(c.n_vocab)))
    convert(source, folder / "head.gguf", outtype="f32", target=target)
    return folder / "head.gguf"


def write_target(folder: Path, family: str = "llama", kind: str = "F32") -> Path:
    """Write a target of random weights."""
    tensors, path = make_tensors(family, kind, SIZES), folder / f"{family}.gguf"
    write_model_file(path, family, make_metadata(family, SIZES), tensors, types_of(tensors, kind))
    return path


# The witness


def fuse(c: Variant, w: dict[str, np.ndarray], taps: np.ndarray) -> np.ndarray:
    if c.fc_norm:
        parts = np.split(taps, len(layers_of(c)), axis=1)
        taps = np.concatenate([norm(x, w[f"fc_norm.{i}"]) for i, x in enumerate(parts)], axis=1)
    return (norm(taps, w["input_norm"]) if c.norm_before_fc else taps) @ w["fc"].T


def draft_rows(
    c: Variant, w: dict[str, np.ndarray], tokens: np.ndarray, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return logits and outputs, normed or not, of entries 1, 2, ...: token p with row p - 1."""
    e = norm(w["embed_tokens"][tokens], w["input_layernorm"])
    h = norm(rows, w["hidden_norm"])
    pair = np.concatenate([e, h], axis=1)
    norms = [w[f"self_attn.{x}_norm"] for x in "qk"] if c.qk_norm else None

    def of(name: str, x: np.ndarray) -> np.ndarray:
        return x @ w[f"{name}_proj"].T + w.get(f"{name}_proj.bias", 0.0)

    seen = attended(c, *(of(f"self_attn.{name}", pair) for name in "qkv"), norms)
    x = (h if c.norm_before_residual else rows) + of("self_attn.o", seen)
    f = norm(x, w["post_attention_layernorm"])
    x = x + of("mlp.down", silu(of("mlp.gate", f)) * of("mlp.up", f))
    hidden = norm(x, w["norm"])
    return hidden @ w["lm_head"].T, hidden if c.norm_output else x


def attended(
    c: Variant,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    norms: list[np.ndarray] | None = None,
) -> np.ndarray:
    """Return what rows at the places 1, 2, ... see of themselves and those before: [n, heads]."""
    n, shape = len(q), Config("llama", scaling=c.scaling, **HEADS)
    turns, magnitude = inverse_frequencies(shape)
    angles = np.outer(np.arange(1, n + 1), np.concatenate([turns, turns]))
    q, k, v = (x.reshape(n, -1, shape.head_width).swapaxes(0, 1) for x in (q, k, v))
    if norms:
        q, k = norm(q, norms[0]), norm(k, norms[1])
    cos, sin = np.cos(angles) * magnitude, np.sin(angles) * magnitude
    q, k = (rotate(x, cos, sin) for x in (q, k))
    k, v = (np.repeat(x, shape.n_heads // shape.n_kv_heads, axis=0) for x in (k, v))
    scores = np.einsum("hid,hjd->hij", q, k) / np.sqrt(shape.head_width)
    p = np.exp(scores + np.triu(np.full((n, n), -np.inf), 1))
    p /= p.sum(-1, keepdims=True)
    return np.einsum("hij,hjd->ihd", p, v).reshape(n, -1)


def drafts(
    c: Variant, w: dict[str, np.ndarray], tokens: np.ndarray, fused: np.ndarray, k: int
) -> tuple[list[int], float]:
    """Return k greedy drafts after ``tokens``, and the least distance of the two best logits."""
    found, margin, ids = [], np.inf, w["d2t"] + np.arange(c.n_draft) if "d2t" in w else None
    text, rows = tokens[1:], fused[: len(tokens) - 1]
    for _ in range(k):
        logits, outputs = draft_rows(c, w, text, rows)
        second, first = np.sort(logits[-1])[-2:]
        margin = min(margin, first - second)
        best = int(logits[-1].argmax())
        found.append(best if ids is None else int(ids[best]))
        text, rows = np.append(text, found[-1]), np.concatenate([rows, outputs[-1:]])
    return found, float(margin)
