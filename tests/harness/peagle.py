"""P-EAGLE heads and PARD models of random weights as published, and their formulas in NumPy.

A head's first layer is EAGLE-3's (``harness.eagle3``), a model is a trunk (``harness.trunks``).
"""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness import eagle3, trunks
from harness.eagle3 import HEADS, N_FF, N_VOCAB, WIDTH
from harness.generated import TINY, make_metadata, make_tensors, types_of
from harness.published import tokenizer, write_checkpoint
from harness.restated import norm, silu
from mtpcore.conversion import convert
from mtpcore.gguf import write_model_file

MASK = N_VOCAB - 3


class Variant(NamedTuple):
    """A head: its first layer, how many layers there are, and what the masks' token is called."""

    head: eagle3.Variant = eagle3.Variant(own_table=True)
    n_layers: int = 1
    mask_key: str = "ptd_token_id"


VARIANTS = {
    "one layer": Variant(),
    "two layers": Variant(
        eagle3.Variant(layers=(1, 4), n_draft=N_VOCAB, says_n_draft=False), 2, "pard_token"
    ),
    "speculators": Variant(
        eagle3.Variant(
            "Eagle3Speculator",
            "layers.0.",
            nested="transformer_layer_config",
            layers=(0, 2, eagle3.SIZES.n_layers),
            norm_before_residual=True,
            fc_norm=True,
        ),
        3,
        "mask_token_id",
    ),
}


def weights_of(c: Variant, seed: int = 0) -> dict[str, np.ndarray]:
    """Return random weights by their published names, those of the first layer without prefix."""
    rng = np.random.default_rng([seed, 1])

    def random(*shape: int, around: float = 0.0) -> np.ndarray:
        return (around + rng.normal(0, 0.3, shape)).astype(np.float32)

    q, kv = (HEADS[name] * HEADS["head_width"] for name in ("n_heads", "n_kv_heads"))
    made = eagle3.weights_of(c.head, seed)
    made["mask_hidden"] = random(1, 1, made["fc"].shape[1])
    for n in range(1, c.n_layers):
        layer = {
            "input_layernorm": random(WIDTH, around=1),
            "self_attn.q_proj": random(q, WIDTH),
            "self_attn.k_proj": random(kv, WIDTH),
            "self_attn.v_proj": random(kv, WIDTH),
            "self_attn.o_proj": random(WIDTH, q),
            "post_attention_layernorm": random(WIDTH, around=1),
            "mlp.gate_proj": random(N_FF, WIDTH),
            "mlp.up_proj": random(N_FF, WIDTH),
            "mlp.down_proj": random(WIDTH, N_FF),
        }
        made |= {f"layers.{n}.{name}": values for name, values in layer.items()}
    return made


def write_head(folder: Path, c: Variant, seed: int = 0) -> Path:
    """Write a head's checkpoint and convert it; return the model file."""
    config = eagle3.config_of(c.head)
    config[c.mask_key] = MASK
    inner = config.get(c.head.nested, config)
    inner["num_hidden_layers"] = c.n_layers
    outer = ("fc", "norm", "embed_tokens", "lm_head", "fc_norm.0", "fc_norm.1", "fc_norm.2")
    named = {}
    for name, values in weights_of(c, seed).items():
        if name in ("d2t", "t2d", "mask_hidden"):
            named[name] = values
        else:
            at_top = name in outer or name.startswith("layers.")
            named[f"{'' if at_top else c.head.prefix}{name}.weight"] = values
    source = write_checkpoint(folder / "head", config, named)
    convert(source, folder / "head.gguf", outtype="f32", target=_target_folder(folder, N_VOCAB))
    return folder / "head.gguf"


def _target_folder(folder: Path, n_vocab: int) -> Path:
    target = folder / "target"
    target.mkdir(exist_ok=True)
    sizes = {
        "num_hidden_layers": eagle3.SIZES.n_layers,
        "hidden_size": WIDTH,
        "vocab_size": n_vocab,
    }
    (target / "config.json").write_text(json.dumps({"architectures": ["Any"], **sizes}))
    (target / "tokenizer.json").write_text(json.dumps(tokenizer(n_vocab)))
    return target


def write_model(folder: Path, c: trunks.Config, seed: int = 0) -> Path:
    """Write a PARD model's checkpoint and convert it; return the model file."""
    config = trunks.configuration(c) | {"pard_token": MASK, "block_size": 6}
    weights = trunks.published(c, trunks.checkpoint(c, seed))
    source = write_checkpoint(folder / "pard", config, weights)
    target = _target_folder(folder, trunks.N_VOCAB)
    convert(source, folder / "pard.gguf", outtype="f32", target=target)
    return folder / "pard.gguf"


def write_pard_target(folder: Path) -> Path:
    """Write a Llama of random weights with the vocabulary of such a model."""
    sizes = TINY._replace(n_vocab=trunks.N_VOCAB)
    tensors, path = make_tensors("llama", "F32", sizes), folder / "llama.gguf"
    write_model_file(
        path, "llama", make_metadata("llama", sizes), tensors, types_of(tensors, "F32")
    )
    return path


# The witness


def scores(
    c: Variant, w: dict[str, np.ndarray], tokens: np.ndarray, taps: np.ndarray, k: int
) -> np.ndarray:
    """Return the logits of k drafts after a text, its pending token last: [k, N_VOCAB].

    ``taps`` are the target's rows of all tokens but that one.
    """
    text = np.append(tokens[1:], [MASK] * (k - 1))
    masks = np.repeat(w["mask_hidden"].reshape(1, -1), k - 1, axis=0)
    fused = eagle3.fuse(c.head, w, np.concatenate([taps, masks]))
    _, x = eagle3.draft_rows(c.head, w, text, fused)
    for n in range(1, c.n_layers):
        at = f"layers.{n}."
        a = norm(x, w[at + "input_layernorm"])
        qkv = (a @ w[f"{at}self_attn.{name}_proj"].T for name in "qkv")
        x = x + eagle3.attended(c.head, *qkv) @ w[at + "self_attn.o_proj"].T
        f = norm(x, w[at + "post_attention_layernorm"])
        gate = silu(f @ w[at + "mlp.gate_proj"].T)
        x = x + (gate * (f @ w[at + "mlp.up_proj"].T)) @ w[at + "mlp.down_proj"].T
    logits = norm(x, w["norm"])[-k:] @ w["lm_head"].T
    if "d2t" not in w:
        return logits
    made = np.full((k, N_VOCAB), -np.inf)
    made[:, w["d2t"].astype(int) + np.arange(c.head.n_draft)] = logits
    return made


def pard_scores(c: trunks.Config, w: dict[str, np.ndarray], tokens: np.ndarray, k: int):
    """Return the logits of k drafts after a text: [k, N_VOCAB]."""
    text = np.append(tokens, [MASK] * (k - 1)).astype(int)
    return trunks.witness(c, w, text)["logits"][-k:]


def read_weights(c: Variant, seed: int, target) -> dict[str, np.ndarray]:
    """Return the witness's weights, with the target's tables where there are no others."""
    made = weights_of(c, seed)
    made.setdefault("embed_tokens", target.tensors["token_embd.weight"].array())
    made.setdefault("lm_head", target.tensors["output.weight"].array())
    return {n: v.astype(np.float64) if v.dtype.kind == "f" else v for n, v in made.items()}
