"""DFlash, its relatives and XPress: random weights as published, and their formulas in NumPy.

The witness works on a whole text at once, in float64, on weights by their published names without
``.weight``.
"""

import heapq
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness import lilicorr
from harness.generated import TINY, make_metadata, make_tensors, types_of
from harness.published import tokenizer, write_checkpoint
from harness.restated import EPS, norm, silu
from harness.trunks import rotate
from mtpcore.conversion import convert
from mtpcore.gguf import write_model_file

GROUP, N_CANDIDATES = 4, 6
SIZES = TINY._replace(n_layers=6)
N_VOCAB, WIDTH, N_FF, N_DRAFT, RANK = SIZES.n_vocab, SIZES.width, 20, 24, 4
N_HEADS, N_KV_HEADS, HEAD_WIDTH, BASE = 4, 2, 8, 10000.0


class Variant(NamedTuple):
    """What published drafters differ in; ``layers`` are those of the target whose input is read.

    ``neighbours``: the checkpoint has rotary pairs side by side. The last three are the target's
    width, tokens and layers.
    """

    architecture: str = "DFlashDraftModel"
    speculators: bool = False
    layers: tuple[int, ...] = (1, 3, 5)
    n_layers: int = 3
    size: int = 5
    n_draft: int = N_VOCAB
    own_tables: bool = False
    causal: bool = False
    windows: tuple[int, ...] = (0, 0, 0)
    windows_both_ways: bool = False
    markov: bool = False
    passes: int = 0
    n_taps: int = 0
    head_width: int = 0  # of LiLiCorr's
    from_anchor: bool | None = None
    neighbours: bool = False
    width: int = WIDTH
    n_vocab: int = N_VOCAB
    n_target_layers: int = SIZES.n_layers

    @property
    def mask(self) -> int:
        """The token of rows that draft."""
        return self.n_vocab - 2

    @property
    def first(self) -> int:
        """The row of the first draft."""
        plain = self.markov and not self.speculators
        return int(not (plain if self.from_anchor is None else self.from_anchor))


VARIANTS = {
    "z-lab": Variant(),
    "speculators": Variant(speculators=True, n_draft=N_DRAFT, own_tables=True),
    "causal": Variant(causal=True),
    "the target's last layer": Variant(layers=(2, SIZES.n_layers)),
    "windows": Variant(windows=(4, 0, 9)),
    "speculators' windows": Variant(speculators=True, windows=(4, 4, 0)),
    "windows both ways": Variant(speculators=True, windows=(3, 0, 3), windows_both_ways=True),
    "dspark": Variant("Qwen3DSparkModel", markov=True),
    "speculators' dspark": Variant(
        "DSparkDraftModel", speculators=True, markov=True, n_draft=N_DRAFT, own_tables=True
    ),
    "dspark in place": Variant("DSparkDraftModel", markov=True, from_anchor=False, size=4),
    "xpress": Variant("Qwen3XPressModel", passes=3),
    "speculators' xpress": Variant(
        "XPressSpeculator", speculators=True, passes=6, n_draft=N_DRAFT, own_tables=True
    ),
    "xpress from the pending token": Variant(
        "XPressDraftModel", passes=1, from_anchor=True, causal=True
    ),
    "dflash2": Variant("DFlash2DraftModel", n_taps=2),
    "speculators' dflash2": Variant(
        "DFlash2DraftModel", speculators=True, n_taps=3, windows=(0, 3, 4), windows_both_ways=True
    ),
    "causal dflash2": Variant("DFlash2DraftModel", n_taps=1, causal=True, size=4),
    "lilicorr": Variant("LiLiCorrDraftModel", head_width=12),
    "convolved lilicorr": Variant(
        "LiLiCorrDraftModel", head_width=WIDTH, n_taps=2, windows=(0, 3, 4), size=4
    ),
    "LFM2's dspark": Variant("Lfm2DSparkDraftModel", markov=True, neighbours=True),
}
REFINER = {
    "w1": "token_embed",
    "w2": "readout",
    "down_h": "down_h",
    "down_g": "down_g",
    "in_proj": "in_proj",
    "mix.L": "mix_l",
    "mlp.gate_proj": "mlp_gate",
    "mlp.up_proj": "mlp_up",
    "mlp.down_proj": "mlp_down",
}
"""What the authors' code calls a tensor of XPress' head, and what speculators calls it."""


def for_target(c: Variant, target) -> Variant:
    """Return a variant for another target: of its width and tokens, reading three of its layers."""
    h, drafts_all = target.hparams, c.n_draft == c.n_vocab
    return c._replace(
        layers=(0, 1, h.n_layers),
        width=h.width,
        n_vocab=h.n_vocab,
        n_draft=h.n_vocab if drafts_all else c.n_draft,
        n_target_layers=h.n_layers,
    )


def weights_of(c: Variant, seed: int = 0) -> dict[str, np.ndarray]:
    """Return random weights by their published names."""
    rng = np.random.default_rng(seed)

    def random(*shape: int, around: float = 0.0) -> np.ndarray:
        return (around + rng.normal(0, 0.3, shape)).astype(np.float32)

    q, kv = N_HEADS * HEAD_WIDTH, N_KV_HEADS * HEAD_WIDTH
    made = {
        "fc": random(c.width, len(c.layers) * c.width),
        "hidden_norm": random(c.width, around=1),
        "norm": random(c.width, around=1),
    }
    for n in range(c.n_layers):
        layer = {
            "input_layernorm": random(c.width, around=1),
            "self_attn.q_proj": random(q, c.width),
            "self_attn.k_proj": random(kv, c.width),
            "self_attn.v_proj": random(kv, c.width),
            "self_attn.o_proj": random(c.width, q),
            "self_attn.q_norm": random(HEAD_WIDTH, around=1),
            "self_attn.k_norm": random(HEAD_WIDTH, around=1),
            "post_attention_layernorm": random(c.width, around=1),
            "mlp.gate_proj": random(N_FF, c.width),
            "mlp.up_proj": random(N_FF, c.width),
            "mlp.down_proj": random(c.width, N_FF),
        }
        for conv in ("attention_conv", "mlp_conv") if c.n_taps else ():
            layer[f"{conv}.base_kernel"] = random(2, c.n_taps, c.width, around=0.3)
            layer[f"{conv}.kernel_projection"] = random(2 * c.n_taps * c.width // GROUP, c.width)
        made |= {f"layers.{n}.{name}": values for name, values in layer.items()}
    if c.own_tables:
        made |= {"embed_tokens": random(c.n_vocab, c.width), "lm_head": random(c.n_draft, c.width)}
    if c.n_draft < c.n_vocab:
        ids = np.sort(rng.permutation(c.n_vocab)[: c.n_draft])
        made |= {"d2t": ids - np.arange(c.n_draft), "t2d": np.isin(np.arange(c.n_vocab), ids)}
    if c.markov:
        made["markov_head.markov_w1"] = 3 * random(c.n_vocab, RANK)
        made["markov_head.markov_w2"] = random(c.n_draft, RANK)
        made["confidence_head.proj"] = random(1, c.width + RANK)
    if c.head_width:
        made |= lilicorr.head_weights(random, c.width, c.head_width, c.size)
    elif c.n_taps:
        made["candidate_selector.predecessor_codebook"] = 3 * random(c.n_vocab, RANK)
        made["candidate_selector.successor_codebook"] = 3 * random(c.n_vocab, RANK)
        made["candidate_selector.hidden_projection"] = random(RANK, c.width)
    if c.passes:
        head = {
            "w1": 6 * random(c.n_vocab, RANK),
            "w2": 3 * random(c.n_draft, RANK),
            "down_h": random(RANK, c.width),
            "down_g": random(RANK, c.width),
            "in_proj": random(RANK, 3 * RANK),
            "mix.L": 2 * random(RANK, c.size, c.size),
            "mlp.gate_proj": random(2 * RANK, RANK),
            "mlp.up_proj": random(2 * RANK, RANK),
            "mlp.down_proj": random(RANK, 2 * RANK),
        }
        made |= {f"xpress_head.{name}": values for name, values in head.items()}
    return made


def kind_of(c: Variant) -> str:
    """Return what the drafter is called."""
    kinds = {"dspark": c.markov, "xpress": c.passes, "dflash2": c.n_taps}
    return next((kind for kind, is_so in kinds.items() if is_so), "dflash")


def config_of(c: Variant) -> dict[str, object]:
    """Return ``config.json``."""
    kinds = ["sliding_attention" if window else "full_attention" for window in c.windows]
    layer: dict[str, object] = {
        "hidden_size": c.width,
        "intermediate_size": N_FF,
        "max_position_embeddings": 512,
        "num_attention_heads": N_HEADS,
        "num_key_value_heads": N_KV_HEADS,
        "head_dim": HEAD_WIDTH,
        "num_hidden_layers": c.n_layers,
        "rms_norm_eps": EPS,
        "rope_theta": BASE,
        "vocab_size": c.n_vocab,
    }
    if any(c.windows):
        layer |= {"layer_types": kinds, "sliding_window": max(c.windows)}
    made: dict[str, object] = {"architectures": [c.architecture], "block_size": c.size}
    selecting: dict[str, object] = {}
    if c.n_taps:
        selecting = {"conv_kernel_size": c.n_taps, "conv_group_size": GROUP}
    if c.head_width:
        selecting |= lilicorr.head_config(c.head_width if c.head_width != c.width else 0)
    elif c.n_taps:
        selecting |= {"selector_rank": RANK, "selector_top_k": N_CANDIDATES}
    if c.neighbours:
        made["rope_is_neox_style"] = False
    if c.from_anchor is not None:
        made["sample_from_anchor"] = c.from_anchor
    if c.speculators:
        made |= {
            "transformer_layer_config": layer,
            "speculators_model_type": kind_of(c),
            "draft_vocab_size": c.n_draft,
            "aux_hidden_state_layer_ids": list(c.layers),
            "mask_token_id": c.mask,
            "sliding_window_non_causal": c.windows_both_ways,
        }
        return made | selecting | ({"num_jacobi_passes": c.passes} if c.passes else {})
    if c.passes:
        made |= {"xpress_num_passes": c.passes, "xpress_rank": RANK, "xpress_block_size": c.size}
    if c.n_taps:
        selecting["block_size"] = made.pop("block_size")
    inner = selecting | {"target_layer_ids": [n - 1 for n in c.layers], "mask_token_id": c.mask}
    return made | layer | {"dflash_config": inner | {"causal": c.causal}}


def side_by_side(values: np.ndarray) -> np.ndarray:
    """Return rows of heads whose rotary pairs are halves with those of a pair side by side."""
    heads = values.reshape(-1, HEAD_WIDTH, *values.shape[1:])
    order = [i + half for i in range(HEAD_WIDTH // 2) for half in (0, HEAD_WIDTH // 2)]
    return heads[:, order].reshape(values.shape)


def write_drafter(folder: Path, c: Variant, seed: int = 0) -> Path:
    """Write a drafter's checkpoint and convert it; return the model file."""
    named = {}
    for name, values in weights_of(c, seed).items():
        head, _, rest = name.partition("xpress_head.")
        if rest and not head and c.speculators:
            name = f"refiner_head.{REFINER[rest]}"
        if c.neighbours and name.endswith(("q_proj", "k_proj", "q_norm", "k_norm")):
            values = side_by_side(values)
        bare = name in ("d2t", "t2d") or rest == "mix.L" or name.startswith("lilicorr.")
        bare |= name.endswith(("codebook", "kernel"))
        named[name if bare else f"{name}.weight"] = values
    source = write_checkpoint(folder / "drafter", config_of(c), named)
    target = folder / "target"
    target.mkdir(exist_ok=True)
    sizes = {
        "num_hidden_layers": c.n_target_layers,
        "hidden_size": c.width,
        "vocab_size": c.n_vocab,
    }
    (target / "config.json").write_text(json.dumps({"architectures": ["Any"], **sizes}))
    (target / "tokenizer.json").write_text(json.dumps(tokenizer(c.n_vocab)))
    convert(source, folder / "drafter.gguf", outtype="f32", target=target)
    return folder / "drafter.gguf"


def write_target(folder: Path, family: str = "llama", kind: str = "F32") -> Path:
    """Write a target of random weights."""
    tensors, path = make_tensors(family, kind, SIZES), folder / f"{family}.gguf"
    write_model_file(path, family, make_metadata(family, SIZES), tensors, types_of(tensors, kind))
    return path


# The witness


def _heads(x: np.ndarray, n_heads: int) -> np.ndarray:
    return x.reshape(len(x), n_heads, -1).swapaxes(0, 1)


def _rotated(x: np.ndarray, begin: int) -> np.ndarray:
    turns = BASE ** -(np.arange(0, HEAD_WIDTH, 2) / HEAD_WIDTH)
    places = np.arange(begin, begin + x.shape[1])
    angles = np.outer(places, np.concatenate([turns, turns]))
    return rotate(x, np.cos(angles), np.sin(angles))


def _stored(c: Variant, w: dict[str, np.ndarray], n: int, x: np.ndarray, begin: int) -> np.ndarray:
    """Return keys and values of rows in layer n, [2, heads, rows, width]."""
    at = f"layers.{n}.self_attn."
    k = norm(_heads(x @ w[at + "k_proj"].T, N_KV_HEADS), w[at + "k_norm"])
    return np.stack([_rotated(k, begin), _heads(x @ w[at + "v_proj"].T, N_KV_HEADS)])


def entries(c: Variant, w: dict[str, np.ndarray], taps: np.ndarray) -> list[np.ndarray]:
    """Return keys and values of each layer, of rows [n, n_taps * width] from place 0 on."""
    x = norm(taps @ w["fc"].T, w["hidden_norm"])
    return [_stored(c, w, n, x, 0) for n in range(c.n_layers)]


def convolved(
    c: Variant, w: dict[str, np.ndarray], name: str, side: int, normed: np.ndarray, x: np.ndarray
) -> np.ndarray:
    """Return a block's rows convolved, on one of two sides, by kernels that normed rows change.

    y[i, ch] = sum over t <= i of (base[side, t, ch] + change[i, side, t, ch // group]) x[i - t, ch]
    """
    if not c.n_taps:
        return x
    base, y = w[f"{name}.base_kernel"][side], np.zeros_like(x)
    changes = (normed @ w[f"{name}.kernel_projection"].T).reshape(len(x), 2, c.n_taps, -1)
    for i, t in np.ndindex(len(x), c.n_taps):
        if t <= i:
            y[i] += (base[t] + np.repeat(changes[i, side, t], GROUP)) * x[i - t]
    return y


def block_hidden(
    c: Variant, w: dict[str, np.ndarray], stored: list[np.ndarray], tokens: np.ndarray
) -> np.ndarray:
    """Return the hidden states of a block's rows, after these entries."""
    begin, size = stored[0].shape[2], len(tokens)
    x = w["embed_tokens"][tokens]
    for n in range(c.n_layers):
        at, window = f"layers.{n}.", c.windows[n]
        normed = norm(x, w[at + "input_layernorm"])
        a = convolved(c, w, f"{at}attention_conv", 0, normed, normed)
        q = norm(_heads(a @ w[at + "self_attn.q_proj"].T, N_HEADS), w[at + "self_attn.q_norm"])
        own = _stored(c, w, n, a, begin)
        k, v = np.repeat(np.concatenate([stored[n], own], axis=2), N_HEADS // N_KV_HEADS, axis=1)
        place, seen = np.arange(begin, begin + size)[:, None], np.arange(begin + size)[None]
        hidden = np.zeros((size, begin + size), bool)
        if c.causal or (window and c.speculators and not c.windows_both_ways):
            hidden |= seen > place
        if window:
            hidden |= seen <= place - max(c.windows)
        scores = np.einsum("hid,hjd->hij", _rotated(q, begin), k) / np.sqrt(HEAD_WIDTH)
        scores[:, hidden] = -np.inf
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        attended = np.einsum("hij,hjd->ihd", p, v).reshape(size, -1)
        attended = attended @ w[at + "self_attn.o_proj"].T
        x = x + convolved(c, w, f"{at}attention_conv", 1, normed, attended)
        normed = norm(x, w[at + "post_attention_layernorm"])
        f = convolved(c, w, f"{at}mlp_conv", 0, normed, normed)
        gate = silu(f @ w[at + "mlp.gate_proj"].T)
        y = (gate * (f @ w[at + "mlp.up_proj"].T)) @ w[at + "mlp.down_proj"].T
        x = x + convolved(c, w, f"{at}mlp_conv", 1, normed, y)
    return norm(x, w["norm"])


def block_logits(
    c: Variant, w: dict[str, np.ndarray], stored: list[np.ndarray], tokens: np.ndarray
) -> np.ndarray:
    """Return the logits of a block's rows, after these entries."""
    return block_hidden(c, w, stored, tokens) @ w["lm_head"].T


def markov_logits(w: dict[str, np.ndarray], base: np.ndarray, before: int) -> np.ndarray:
    """Return a row's logits once the token before it is known."""
    return base + w["markov_head.markov_w2"] @ w["markov_head.markov_w1"][before]


def candidates(logits: np.ndarray) -> np.ndarray:
    """Return the best logits of each row, -inf in place of the others."""
    kept = np.argsort(-logits, axis=1, kind="stable")[:, :N_CANDIDATES]
    made = np.full(logits.shape, -np.inf)
    np.put_along_axis(made, kept, np.take_along_axis(logits, kept, axis=1), axis=1)
    return made


def selected_scores(
    w: dict[str, np.ndarray], base: np.ndarray, hidden: np.ndarray, before: int
) -> np.ndarray:
    """Return the scores of a row's candidates once the token before it is known."""
    of = {name.partition(".")[2]: w[name] for name in w if name.startswith("candidate_selector.")}
    pair = of["predecessor_codebook"][before] * (of["hidden_projection"] @ hidden)
    return base + of["successor_codebook"] @ pair


def refined_logits(w: dict[str, np.ndarray], hidden: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Return a whole block's logits once the token before each row's own is known."""
    of = {name: w[f"xpress_head.{name}"] for name in REFINER}
    mean = np.tile(hidden.mean(0), (len(hidden), 1))
    x = np.concatenate([hidden @ of["down_h"].T, mean @ of["down_g"].T, of["w1"][before]], axis=1)
    x = x @ of["in_proj"].T
    x = x + np.einsum("ckj,jc->kc", of["mix.L"] * np.tri(len(x)), x)
    gate = silu(x @ of["mlp.gate_proj"].T)
    x = x + (gate * (x @ of["mlp.up_proj"].T)) @ of["mlp.down_proj"].T
    return hidden @ w["lm_head"].T + x @ of["w2"].T


def drafted(c: Variant, w: dict[str, np.ndarray], logits: np.ndarray) -> np.ndarray:
    """Return the best token of each row."""
    best = logits.argmax(1)
    return best + w["d2t"][best].astype(int) if "d2t" in w else best


def rounds(
    c: Variant, w: dict[str, np.ndarray], text: list[int], taps: np.ndarray
) -> list[np.ndarray]:
    """Return the logits of a block before XPress' first pass and after each, as published.

    The published loop is ``block[:, 1:] = argmax(base)``, then so many times ``prev =
    block.roll(1)``, ``prev[:, 0] =`` the token before the pending one, and ``block[:, 1:] =
    argmax(base + bias(prev))``. Where the pending token's row drafts, row i is after draft i.
    """
    block = np.array([text[-1]] + [c.mask] * (c.size - 1))
    hidden = block_hidden(c, w, entries(c, w, taps), block)
    made = [hidden @ w["lm_head"].T]
    for _ in range(c.passes):
        chosen = drafted(c, w, made[-1])
        if c.first:
            before = np.concatenate([[text[max(len(text) - 2, 0)], text[-1]], chosen[1:-1]])
        else:
            before = np.concatenate([[text[-1]], chosen[:-1]])
        made.append(refined_logits(w, hidden, before))
    return made


def scores(
    c: Variant, w: dict[str, np.ndarray], text: list[int], taps: np.ndarray, drafts: list[int]
) -> np.ndarray:
    """Return what each of these drafts is chosen by: [n, n_vocab], -inf where none can be.

    The pending token is the last one of the text.
    """
    logits = rounds(c, w, text, taps)[-1][c.first :][: len(drafts)]
    if c.markov:
        before = [text[-1], *drafts[:-1]]
        logits = np.stack([markov_logits(w, *pair) for pair in zip(logits, before, strict=True)])
    if c.head_width or c.n_taps:
        block = np.array([text[-1]] + [c.mask] * (c.size - 1))
        hidden = block_hidden(c, w, entries(c, w, taps), block)[c.first :]
    if c.head_width:
        anchor = norm(taps[-1] @ w["fc"].T, w["hidden_norm"])
        walk = lilicorr.walk(w, w["embed_tokens"], hidden @ w["lm_head"].T, hidden, anchor)
        logits = walk[: len(drafts)]
    elif c.n_taps:
        before = [text[-1], *drafts[:-1]]
        rows = zip(candidates(logits), hidden[: len(drafts)], before, strict=True)
        logits = np.stack([selected_scores(w, *row) for row in rows])
    if "d2t" not in w:
        return logits
    made = np.full((len(logits), c.n_vocab), -np.inf)
    made[:, w["d2t"].astype(int) + np.arange(c.n_draft)] = logits
    return made


def drafts(
    c: Variant, w: dict[str, np.ndarray], text: list[int], taps: np.ndarray, k: int
) -> tuple[list[int], float]:
    """Return k greedy drafts, and the least distance of the two best logits."""
    found: list[int] = []
    margin = np.inf
    if c.passes:
        second, first = np.sort(rounds(c, w, text, taps), axis=-1)[:, c.first :, -2:].T
        margin = (first - second).min()
    for _ in range(k):
        row = scores(c, w, text, taps, [*found, 0])[-1]
        second, first = np.sort(row)[-2:]
        margin = min(margin, first - second)
        found.append(int(row.argmax()))
    return found, float(margin)


def likeliest(
    c: Variant, w: dict[str, np.ndarray], text: list[int], taps: np.ndarray, k: int, n: int
) -> tuple[set[tuple[int, ...]], float]:
    """Return the n likeliest nodes of a block's tree, k deep, as the tokens on their ways.

    As published: from a heap the best one, which then has its next sibling and its first child in
    it. The second value is how much better the last one is than the next, in logarithms.
    """
    logits = rounds(c, w, text, taps)[-1][c.first :][:k]
    log_p = logits - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
    log_p -= logits.max(1, keepdims=True)
    ranked = np.argsort(-log_p, axis=1)
    tokens = ranked + w["d2t"][ranked].astype(int) if "d2t" in w else ranked
    heap, found = [(-log_p[0, ranked[0, 0]], (0,))], list[tuple[float, tuple[int, ...]]]()
    while heap and len(found) <= n:
        cost, ranks = heapq.heappop(heap)
        found.append((cost, ranks))
        depth, rank = len(ranks), ranks[-1]
        row = log_p[depth - 1, ranked[depth - 1]]
        if rank + 1 < len(row):
            heapq.heappush(heap, (cost + row[rank] - row[rank + 1], (*ranks[:-1], rank + 1)))
        if depth < len(log_p):
            heapq.heappush(heap, (cost - log_p[depth, ranked[depth, 0]], (*ranks, 0)))
    ways = {tuple(int(tokens[i, r]) for i, r in enumerate(ranks)) for _, ranks in found[:n]}
    return ways, found[n][0] - found[n - 1][0]


def read_weights(c: Variant, seed: int, target) -> dict[str, np.ndarray]:
    """Return the witness's weights, with the tables of the target where there are no others."""
    made = weights_of(c, seed)
    table = target.tensors["token_embd.weight"]
    made.setdefault("embed_tokens", table.array())
    made.setdefault("lm_head", target.tensors.get("output.weight", table).array())
    return {n: v.astype(np.float64) if v.dtype.kind == "f" else v for n, v in made.items()}
