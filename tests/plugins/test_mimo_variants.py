"""MiMo's variants, on random models, against a restatement of the formulas in float64.

One witness serves both families: a layer of MiMo-7B is one of MiMo-V2 without window, sinks and
experts, and with biases.
"""

from typing import NamedTuple

import mtpcore_mimo_mtp
import numpy as np
import pytest
from harness.restated import (
    BACKENDS,
    EPS,
    RandomWeights,
    block_of,
    check,
    expert,
    joined,
    norm,
    swiglu,
)

from mtpcore import Batch, Context, link
from mtpcore.discovery.loading import load_model
from mtpcore.discovery.registry import Registry
from mtpcore.gguf import write_model_file
from mtpcore.testing import Runner

D, H, DH, DV, N_ROT, V = 24, 4, 8, 6, 4, 40
N_TRUNK, N_EXPERTS, N_USED, FF = 3, 6, 2, 10
WINDOW, KV_HEADS = 5, {"full": 1, "near": 2}
BASES = {"full": 100.0, "near": 10.0}


class Variant(NamedTuple):
    """What files of the families differ in."""

    arch: str = "mimo2"
    fused: bool = False  # q, k and v of the trunk's layers in one matrix; heads' always are
    tied: bool = False
    norms: tuple[str, ...] = ("layer", "layer", "layer")  # each head's, the last one where it ends
    own: tuple[int, ...] = ()  # heads with tables of their own
    trunk: str = "full near near"
    heads: str = "near"
    says_near_base: bool = True
    value_scale: float | None = 0.75
    sinks: bool = True
    sparse: tuple[int, ...] = (1, 2)
    says_gate: bool = True
    near_width: int = DH  # of keys in layers with a window

    def key_width(self, kind):
        return self.near_width if kind == "near" else DH

    @property
    def kinds(self):
        return self.trunk.split() + [self.heads] * len(self.norms)

    @property
    def residual(self):
        """Whether heads read and hand on rows before the norms."""
        return self.arch == "mimo2"


FIRST = Variant(
    "mimo", norms=("own",) * 3, trunk="full full full", heads="full", value_scale=None,
    sinks=False, sparse=(),
)  # fmt: skip
VARIANTS = {
    "V2-Flash": Variant(),
    "V2.5": Variant(fused=True, value_scale=None),
    "three norms": Variant(norms=("own", "layer", "output")),
    "three norms, the other way": Variant(norms=("output", "own and layer", "own"), tied=True),
    "own tables of a head": Variant(own=(1,)),
    "own tables of the others, tied": Variant(own=(0, 2), tied=True),
    "a value scale of one": Variant(value_scale=1.0),
    "no sinks": Variant(sinks=False, fused=True),
    "one head": Variant(norms=("layer",)),
    "two heads": Variant(norms=("output", "layer")),
    "everything is seen": Variant(trunk="full full full", heads="full"),
    "windows only": Variant(trunk="near near near"),
    "heads alone have windows": Variant(trunk="full full full", fused=True),
    "a base that the file leaves out": Variant(says_near_base=False),
    "dense": Variant(sparse=()),
    "experts in every layer": Variant(sparse=(0, 1, 2), says_gate=False),
    "experts in a head": Variant(sparse=(1, 4)),
    "MiMo-7B": FIRST._replace(norms=("own",)),
    "MiMo-7B, three heads": FIRST,
    "MiMo-7B, the trunk's norm, own tables": FIRST._replace(norms=("output", "own"), own=(1,)),
    "MiMo-7B, tied": FIRST._replace(tied=True),
    "other keys in windows": Variant(near_width=6),
}
every = pytest.mark.parametrize("name", VARIANTS)
several = [name for name, c in VARIANTS.items() if len(c.norms) > 1]


def value_width(c):
    return DV if c.arch == "mimo2" else DH


def make_tensors(c, seed=0):
    random = RandomWeights(seed)
    made = random.tables(V, D, c.tied)
    for n, kind in enumerate(c.kinds):
        kv = KV_HEADS[kind] if c.arch == "mimo2" else 2
        width = c.key_width(kind)
        rows = {"q": H * width, "k": kv * width, "v": kv * value_width(c)}
        block = {
            "attn_norm.weight": random(D, around=1),
            "ffn_norm.weight": random(D, around=1),
            "attn_output.weight": random(D, H * value_width(c)),
        }
        qkv = {part: random(n_rows, D) for part, n_rows in rows.items()}
        if c.arch == "mimo2" and (c.fused or n >= N_TRUNK):
            block["attn_qkv.weight"] = np.concatenate(list(qkv.values()))
        else:
            block |= {f"attn_{part}.weight": weight for part, weight in qkv.items()}
        if c.arch == "mimo":
            block |= {f"attn_{part}.bias": random(n_rows) for part, n_rows in rows.items()}
        if c.sinks and kind == "near":
            block["attn_sinks.weight"] = random(H, around=1)
        if n in c.sparse:
            block["ffn_gate_inp.weight"] = random(N_EXPERTS, D)
            block["exp_probs_b.bias"] = random(N_EXPERTS)
            block |= random.swiglu("_exps", FF, D, N_EXPERTS)
        else:
            block |= random.swiglu("", FF, D)
        if n >= N_TRUNK:
            head = n - N_TRUNK
            block |= random.join(D)
            if "own" in c.norms[head]:
                block["nextn.shared_head_norm.weight"] = random(D, around=1)
            if "layer" in c.norms[head]:
                block["layer_output_norm.weight"] = random(D, around=1)
            if head in c.own:
                block |= random.own_tables(V, D)
        made |= {f"blk.{n}.{name}": value for name, value in block.items()}
    return made


def make_metadata(c):
    made = {
        "block_count": len(c.kinds),
        "nextn_predict_layers": len(c.norms),
        "context_length": 256,
        "embedding_length": D,
        "attention.head_count": H,
        "attention.layer_norm_rms_epsilon": EPS,
        "attention.key_length": DH,
        "attention.value_length": value_width(c),
        "rope.freq_base": BASES["full"],
    }
    if c.arch == "mimo":
        made["attention.head_count_kv"] = 2
    else:
        near = [kind == "near" for kind in c.kinds]
        made["attention.head_count_kv"] = [KV_HEADS[kind] for kind in c.kinds]
        made["attention.sliding_window_pattern"] = near
        made["rope.dimension_count"] = N_ROT
        if any(near):
            made["attention.sliding_window"] = WINDOW
        if c.near_width != DH:
            made["attention.key_length_swa"] = c.near_width
        if c.says_near_base:
            made["rope.freq_base_swa"] = BASES["near"]
        if c.value_scale is not None:
            made["attention.value_scale"] = c.value_scale
    if c.sparse:
        made["expert_count"] = N_EXPERTS
        made["expert_used_count"] = N_USED
        if c.says_gate:
            made["expert_gating_func"] = 2
    return {f"{c.arch}.{key}": value for key, value in made.items()}


# The witness: a whole text at once


def rotate(x, places, c, kind):
    """Turn the first dimensions of [n, heads, width] as complex numbers, halves apart."""
    width = c.key_width(kind)
    n_rot = N_ROT if c.arch == "mimo2" and width == DH else width
    half = n_rot // 2
    base = BASES[kind] if kind == "full" or c.says_near_base else 10_000.0  # llama.cpp's default
    turn = np.exp(1j * places[:, None] * base ** (-np.arange(half) / half))[:, None]
    turned = (x[..., :half] + 1j * x[..., half:n_rot]) * turn
    return np.concatenate([turned.real, turned.imag, x[..., n_rot:]], axis=-1)


def attend(b, a, places, c, kind):
    """Row by row and head by head; a sink is one more share that nothing is fetched with."""
    width = c.key_width(kind)
    if "attn_qkv.weight" in b:
        kv = KV_HEADS[kind]
        cuts = [H * width, H * width + kv * width]
        q, k, v = np.split(a @ b["attn_qkv.weight"].T, cuts, axis=1)
    else:
        q, k, v = (a @ b[f"attn_{s}.weight"].T + b.get(f"attn_{s}.bias", 0) for s in "qkv")
    q, k = (rotate(x.reshape(len(a), -1, width), places, c, kind) for x in (q, k))
    v = v.reshape(len(a), -1, value_width(c))
    y = np.empty((len(a), H, value_width(c)))
    for i in range(len(a)):
        first = max(0, i - WINDOW + 1) if kind == "near" else 0
        for h in range(H):
            of = h // (H // k.shape[1])
            shares = np.exp(k[first : i + 1, of] @ q[i, h] / width**0.5)
            total = shares.sum()
            if "attn_sinks.weight" in b:
                total += np.exp(b["attn_sinks.weight"][h])
            y[i, h] = shares @ v[first : i + 1, of] / total
    return y.reshape(len(a), -1) @ b["attn_output.weight"].T


def mixture(b, f):
    gates = 1 / (1 + np.exp(-(b["ffn_gate_inp.weight"] @ f)))
    chosen = np.argsort(-(gates + b["exp_probs_b.bias"]))[:N_USED]
    y = np.zeros(D)
    for e in chosen:
        y += gates[e] / gates[chosen].sum() * expert(b, e, f)
    return y


def run_block(w, n, x, places, c):
    b = block_of(w, n)
    y = attend(b, norm(x, b["attn_norm.weight"]), places, c, c.kinds[n])
    x = x + (1 if c.value_scale is None else c.value_scale) * y
    f = norm(x, b["ffn_norm.weight"])
    if n in c.sparse:
        return x + np.stack([mixture(b, row) for row in f])
    return x + swiglu(b, f)


class Witness:
    """Trunk and heads of one model."""

    def __init__(self, c, tensors):
        self.c = c
        self.w = {name: value.astype(np.float64) for name, value in tensors.items()}
        self.output = self.w.get("output.weight", self.w["token_embd.weight"])

    def trunk(self, tokens):
        x = self.w["token_embd.weight"][tokens]
        for n in range(N_TRUNK):
            x = run_block(self.w, n, x, np.arange(len(tokens)), self.c)
        u = norm(x, self.w["output_norm.weight"])
        return {"logits": u @ self.output.T, "hidden": u, "residual": x}

    def head_norm(self, head):
        block, kind = f"blk.{N_TRUNK + head}.", self.c.norms[head]
        if kind == "output":
            return self.w["output_norm.weight"]
        own = "layer_output_norm" if kind == "layer" else "nextn.shared_head_norm"
        return self.w[f"{block}{own}.weight"]

    def head(self, head, tokens, rows, places):
        """Return what a head makes of pairs of tokens and rows."""
        nextn = f"blk.{N_TRUNK + head}.nextn."
        owns = head in self.c.own
        table = self.w[nextn + "embed_tokens.weight" if owns else "token_embd.weight"]
        x = joined(self.w, N_TRUNK + head, table, tokens, rows)
        x = run_block(self.w, N_TRUNK + head, x, places, self.c)
        u = norm(x, self.head_norm(head))
        output = self.w[nextn + "shared_head_head.weight"] if owns else self.output
        made = {"logits": u @ output.T, "hidden": u}
        return made | {"residual": x} if self.c.residual else made

    def drafts(self, tokens):
        """Return the pending token and each head's draft after a text.

        MiMo-V2: head t reads the text with the trunk's rows, then the drafts with the row that the
        head before made last. MiMo-7B: head t meets each token with the row 1 + t before it, which
        the trunk made.
        """
        made = self.trunk(tokens)
        rows = made["residual" if self.c.residual else "hidden"]
        text = [*tokens, choose(made["logits"][-1])]
        for head in range(len(self.c.norms)):
            first = 1 if self.c.residual else 1 + head
            out = self.head(head, np.array(text[first:]), rows, np.arange(first, len(text)))
            if self.c.residual:
                rows = np.concatenate([rows, out["residual"][-1:]])
            text.append(choose(out["logits"][-1]))
        return text[len(tokens) :]


def choose(logits):
    second, first = np.argsort(logits)[-2:]
    assert logits[first] - logits[second] > 1e-3  # no other arithmetic can see it otherwise
    return int(first)


TOKENS = np.random.default_rng(7).integers(0, V, 70)  # more than a page, many windows
PLUGIN = Registry.of(mtpcore_mimo_mtp)
backends = pytest.mark.parametrize("backend", BACKENDS)


def make_model(name, folder):
    c = VARIANTS[name]
    tensors = make_tensors(c, seed=list(VARIANTS).index(name))
    write_model_file(folder / "mimo.gguf", c.arch, make_metadata(c), tensors)
    return load_model(folder / "mimo.gguf", plugins=PLUGIN), Witness(c, tensors)


def open_runner(model, backend, graph_type="llm", taps=(), head=0):
    kind, kv_dtype, _ = BACKENDS[backend]
    program = model.program(graph_type, taps=taps, head=head)
    return Runner(kind, program, model, kv_dtype=kv_dtype, threads=2)


@backends
@every
def test_trunk_and_heads(name, backend, tmp_path):
    model, witness = make_model(name, tmp_path)
    with model:
        trunk = open_runner(model, backend, taps=["hidden", "residual"]).feed(TOKENS)
        wanted = witness.trunk(TOKENS)
        check(trunk, wanted, backend)
        row = "residual" if witness.c.residual else "hidden"
        for head in range(len(witness.c.norms)):
            made = open_runner(model, backend, "draft", head=head).feed(
                TOKENS[1:], place=1, hidden=trunk[row][:-1]
            )
            places = np.arange(1, len(TOKENS))
            check(made, witness.head(head, TOKENS[1:], wanted[row][:-1], places), backend)


@backends
@pytest.mark.parametrize("name", several)
def test_chains_of_heads(name, backend, tmp_path):
    """Each head drafts what the restated chain does, after texts of many lengths."""
    model, witness = make_model(name, tmp_path)
    n_heads = len(witness.c.norms)
    found = []
    with model:
        cross = link(Context(model, 128, kv_dtype="f32", threads=2, backend=backend))
        for place in range(0, 60, 12):
            cross.llm.process(Batch.of(TOKENS[place : place + 12], seq=0, pos=place))
            drafts = cross.draft(0, n_heads)
            found.append([cross.pending(0), *drafts])
    assert found == [witness.drafts(TOKENS[: place + 12]) for place in range(0, 60, 12)]


@backends
@pytest.mark.parametrize("name", [name for name, c in VARIANTS.items() if len(set(c.norms)) > 1])
def test_each_head_has_the_norm_that_its_tie_names(name, backend, tmp_path):
    """Its logits follow from that norm's weights and from no other's in the file."""
    model, witness = make_model(name, tmp_path)
    rows = np.random.default_rng(3).normal(0, 1, (len(TOKENS), D)).astype(np.float32)
    norms = {n: w for n, w in witness.w.items() if n.endswith("norm.weight")}
    heads = range(len(witness.c.norms))
    candidates = ("nextn.shared_head_norm.weight", "layer_output_norm.weight")
    with model:
        named = {use.wanted: use.tensor for use in model.tie_report()}
        for head in heads:
            block = f"blk.{N_TRUNK + head}."
            has = [block + one for one in candidates if block + one in witness.w]
            tensor = [*has, "output_norm.weight"][0]
            assert named[block + candidates[0]] == tensor
            made = open_runner(model, backend, "draft", head=head).feed(TOKENS, hidden=rows)
            wanted = witness.head(head, TOKENS, rows.astype(np.float64), np.arange(len(TOKENS)))
            x = wanted["hidden"] / witness.head_norm(head)
            output = witness.output
            if head in witness.c.own:
                output = witness.w[block + "nextn.shared_head_head.weight"]
            off = {
                one: np.abs(made["logits"] - (x * weights) @ output.T).max()
                for one, weights in norms.items()
            }
            assert off.pop(tensor) < BACKENDS[backend][2] * np.abs(wanted["logits"]).max()
            assert min(off.values()) > 0.3
