"""GLM's variants, on random models, against a restatement of the formulas in float64."""

from typing import NamedTuple

import mtpcore_glm_nextn
import numpy as np
import pytest
from harness.restated import EPS, RandomWeights, block_of, expert, joined, norm, silu, swiglu

from mtpcore.backends.reference import ReferenceBackend
from mtpcore.discovery.loading import load_model
from mtpcore.discovery.registry import Registry
from mtpcore.errors import MtpcoreError
from mtpcore.gguf import write_model_file
from mtpcore.testing import Runner

D, H, G, DH, N_ROT, V = 24, 4, 2, 8, 4, 40
N_TRUNK, N_EXPERTS, N_USED, FF = 3, 6, 2, 10
SCALE = 1.75


class Variant(NamedTuple):
    """What files of the family differ in."""

    qk_norm: bool = False
    bias: bool = True
    tied: bool = False
    own: bool = True  # the head has tables and norm of its own
    fused: bool = False  # one matrix for q, k, v, and one stack for the experts' gate and up
    sections: tuple[int, ...] = ()
    shared: bool = True


VARIANTS = {
    "4.5-Air": Variant(own=False),
    "4.5": Variant(qk_norm=True),
    "own tables": Variant(own=True),
    "no biases, tied": Variant(bias=False, tied=True, own=False),
    "fused": Variant(fused=True, qk_norm=True),
    "vision": Variant(sections=(1, 1, 0, 0)),
    "no shared expert": Variant(shared=False),
}


def make_tensors(c: Variant, seed: int = 0) -> dict[str, np.ndarray]:
    random = RandomWeights(seed)
    made = random.tables(V, D, c.tied)
    for n in range(N_TRUNK + 1):
        block = {"attn_norm.weight": random(D, around=1), "attn_output.weight": random(D, H * DH)}
        block["post_attention_norm.weight"] = random(D, around=1)
        qkv = [random(heads * DH, D) for heads in (H, G, G)]
        biases = [random(heads * DH) for heads in (H, G, G)]
        if c.fused:
            block["attn_qkv.weight"] = np.concatenate(qkv)
            block["attn_qkv.bias"] = np.concatenate(biases)
        else:
            for name, weight, bias in zip("qkv", qkv, biases, strict=True):
                block[f"attn_{name}.weight"] = weight
                if c.bias:
                    block[f"attn_{name}.bias"] = bias
        if c.qk_norm:
            block["attn_q_norm.weight"] = random(DH, around=1)
            block["attn_k_norm.weight"] = random(DH, around=1)
        if n == 0:
            block |= random.swiglu("", FF, D)
        else:
            block["ffn_gate_inp.weight"] = random(N_EXPERTS, D)
            block["exp_probs_b.bias"] = random(N_EXPERTS)
            block |= random.swiglu("_exps", FF, D, N_EXPERTS)
            if c.fused:
                parts = [block.pop(f"ffn_{part}_exps.weight") for part in ("gate", "up")]
                block["ffn_gate_up_exps.weight"] = np.concatenate(parts, axis=1)
            if c.shared:
                block |= random.swiglu("_shexp", FF, D)
        if n == N_TRUNK:
            block |= random.join(D)
            if c.own:
                block |= random.own_tables(V, D)
                block["nextn.shared_head_norm.weight"] = random(D, around=1)
        made |= {f"blk.{n}.{name}": value for name, value in block.items()}
    return made


def make_metadata(c: Variant) -> dict[str, object]:
    made: dict[str, object] = {
        "block_count": N_TRUNK + 1,
        "nextn_predict_layers": 1,
        "context_length": 256,
        "embedding_length": D,
        "attention.head_count": H,
        "attention.head_count_kv": G,
        "attention.key_length": DH,
        "attention.value_length": DH,
        "attention.layer_norm_rms_epsilon": EPS,
        "rope.freq_base": 100.0,
        "rope.dimension_count": N_ROT,
        "leading_dense_block_count": 1,
        "expert_count": N_EXPERTS,
        "expert_used_count": N_USED,
        "expert_weights_norm": True,
        "expert_weights_scale": SCALE,
    }
    if c.sections:
        made["rope.dimension_sections"] = list(c.sections)
    return {f"glm4moe.{key}": value for key, value in made.items()}


# The witness: a whole text at once


def rotate(x, positions, c):
    """Turn dimensions 0..N_ROT-1 of [n, heads, DH] as complex numbers, halves apart."""
    half = N_ROT // 2
    axis = np.repeat(np.arange(len(c.sections)), c.sections) if c.sections else np.zeros(half, int)
    angle = positions[:, axis] * 100.0 ** (-np.arange(half) / half)
    turned = (x[..., :half] + 1j * x[..., half:N_ROT]) * np.exp(1j * angle)[:, None]
    return np.concatenate([turned.real, turned.imag, x[..., N_ROT:]], axis=-1)


def run_block(w, n, x, positions, c):
    b = block_of(w, n)
    a = norm(x, b["attn_norm.weight"])
    if c.fused:
        joined = a @ b["attn_qkv.weight"].T + b["attn_qkv.bias"]
        q, k, v = np.split(joined, [H * DH, (H + G) * DH], axis=1)
    else:
        q, k, v = (a @ b[f"attn_{s}.weight"].T + b.get(f"attn_{s}.bias", 0) for s in "qkv")
    q, k, v = q.reshape(-1, H, DH), k.reshape(-1, G, DH), v.reshape(-1, G, DH)
    if c.qk_norm:
        q, k = norm(q, b["attn_q_norm.weight"]), norm(k, b["attn_k_norm.weight"])
    q, k = rotate(q, positions, c), rotate(k, positions, c)
    scores = np.einsum("igsd,jgd->gsij", q.reshape(-1, G, H // G, DH), k) / DH**0.5
    p = np.where(np.tri(len(x), dtype=bool), np.exp(scores), 0)
    p /= p.sum(-1, keepdims=True)
    x = x + np.einsum("gsij,jgd->igsd", p, v).reshape(len(x), -1) @ b["attn_output.weight"].T
    f = norm(x, b["post_attention_norm.weight"])
    if "ffn_gate.weight" in b:
        return x + swiglu(b, f)
    return x + np.stack([mixture(b, row, c) for row in f])


def mixture(b, f, c):
    gates = 1 / (1 + np.exp(-(b["ffn_gate_inp.weight"] @ f)))
    chosen = np.argsort(-(gates + b["exp_probs_b.bias"]))[:N_USED]
    y = np.zeros(D)
    for e in chosen:
        if c.fused:
            gate, up = np.split(b["ffn_gate_up_exps.weight"][e] @ f, 2)
            made = b["ffn_down_exps.weight"][e] @ (silu(gate) * up)
        else:
            made = expert(b, e, f)
        y += SCALE * gates[e] / gates[chosen].sum() * made
    if c.shared:
        y += swiglu(b, f, "_shexp")
    return y


def witness(c, tensors, tokens, positions):
    """Return logits and hidden rows of the trunk, and those of the head over all true pairs."""
    w = {name: value.astype(np.float64) for name, value in tensors.items()}
    output = w.get("output.weight", w["token_embd.weight"])
    x = w["token_embd.weight"][tokens]
    for n in range(N_TRUNK):
        x = run_block(w, n, x, positions, c)
    hidden = norm(x, w["output_norm.weight"])

    nextn = f"blk.{N_TRUNK}.nextn."
    table = w.get(nextn + "embed_tokens.weight", w["token_embd.weight"])
    x = joined(w, N_TRUNK, table, tokens[1:], hidden[:-1])
    x = run_block(w, N_TRUNK, x, positions[1:], c)
    u = norm(x, w.get(nextn + "shared_head_norm.weight", w["output_norm.weight"]))
    logits = u @ w.get(nextn + "shared_head_head.weight", output).T
    return {"logits": hidden @ output.T, "hidden": hidden}, {"logits": logits, "hidden": u}


TOKENS = np.random.default_rng(7).integers(0, V, 14)
PLUGIN = Registry.of(mtpcore_glm_nextn)


def open_runner(model, graph_type, taps=()):
    program = model.program(graph_type, taps=taps)
    return Runner(ReferenceBackend("f64"), program, model, kv_dtype="f64")


@pytest.mark.parametrize("name", VARIANTS)
def test_trunk_and_head(name, tmp_path):
    c, path = VARIANTS[name], tmp_path / "glm.gguf"
    tensors = make_tensors(c, seed=list(VARIANTS).index(name))
    write_model_file(path, "glm4moe", make_metadata(c), tensors)
    model = load_model(path, plugins=PLUGIN)
    assert model.hparams.rotary_axes == (4 if c.sections else 1)
    axes = np.random.default_rng(8).integers(0, 30, (len(TOKENS), 4))
    places = np.arange(len(TOKENS))[:, None]
    positions = axes if c.sections else places
    wanted_trunk, wanted_head = witness(c, tensors, TOKENS, positions)

    trunk = open_runner(model, "llm", ["hidden"]).feed(TOKENS, positions=positions)
    head = open_runner(model, "draft").feed(
        TOKENS[1:], place=1, positions=positions[1:], hidden=trunk["hidden"][:-1]
    )
    for made, wanted in ((trunk, wanted_trunk), (head, wanted_head)):
        for output in ("logits", "hidden"):
            assert np.abs(wanted[output]).max() > 0.5
            assert np.abs(made[output] - wanted[output]).max() < 1e-10


def test_ties_say_where_the_tables_come_from(tmp_path):
    for own in (True, False):
        path = tmp_path / f"{own}.gguf"
        c = Variant(own=own, tied=not own)
        write_model_file(path, "glm4moe", make_metadata(c), make_tensors(c))
        model = load_model(path, plugins=PLUGIN)
        found = {use.wanted.split(".")[-2]: use for use in model.tie_report()}
        assert {use.source for use in found.values()} == {"own" if own else "borrowed"}
        head = found["shared_head_head"].tensor
        assert head == (
            f"blk.{N_TRUNK}.nextn.shared_head_head.weight" if own else "token_embd.weight"
        )


def split_files(c, tensors, folder):
    """Write the same model as converters do with and without its head."""
    in_head = {n for n in tensors if n.startswith(f"blk.{N_TRUNK}.")}
    outer = {n for n in tensors if not n.startswith("blk.")}
    trunk = {n: t for n, t in tensors.items() if n not in in_head}
    metadata = make_metadata(c)
    bare = {**metadata, "glm4moe.block_count": N_TRUNK}
    del bare["glm4moe.nextn_predict_layers"]
    write_model_file(folder / "trunk.gguf", "glm4moe", bare, trunk)
    write_model_file(folder / "keyed.gguf", "glm4moe", metadata, trunk)
    write_model_file(
        folder / "mtp.gguf", "glm4moe", metadata, {n: tensors[n] for n in in_head | outer}
    )
    write_model_file(folder / "whole.gguf", "glm4moe", metadata, tensors)


def test_three_layouts_of_files(tmp_path):
    c = Variant(own=False)
    split_files(c, make_tensors(c), tmp_path)
    whole = open_runner(load_model(tmp_path / "whole.gguf", plugins=PLUGIN), "llm").feed(TOKENS)
    hidden = np.ones((len(TOKENS), D))
    drafted = open_runner(load_model(tmp_path / "mtp.gguf", plugins=PLUGIN), "draft").feed(
        TOKENS, hidden=hidden
    )
    for name in ("trunk.gguf", "keyed.gguf"):
        alone = load_model(tmp_path / name, plugins=PLUGIN)
        assert alone.drafters == ()
        assert np.array_equal(open_runner(alone, "llm").feed(TOKENS)["logits"], whole["logits"])
        with pytest.raises(MtpcoreError, match="no drafter"):
            alone.program("draft")
        full = load_model(tmp_path / name, mtp_path=tmp_path / "mtp.gguf", plugins=PLUGIN)
        made = open_runner(full, "draft").feed(TOKENS, hidden=hidden)
        assert np.array_equal(made["logits"], drafted["logits"])


@pytest.mark.parametrize("lost", ["nextn.hnorm", "post_attention_norm", "attn_q", "ffn_down_exps"])
def test_a_head_without_one_of_its_tensors(lost, tmp_path):
    c = Variant()
    tensors = make_tensors(c)
    del tensors[f"blk.{N_TRUNK}.{lost}.weight"]
    write_model_file(tmp_path / "glm.gguf", "glm4moe", make_metadata(c), tensors)
    model = load_model(tmp_path / "glm.gguf", plugins=PLUGIN)
    open_runner(model, "llm").feed(TOKENS)
    with pytest.raises(MtpcoreError, match="no drafter" if "nextn" in lost else lost):
        model.program("draft")
