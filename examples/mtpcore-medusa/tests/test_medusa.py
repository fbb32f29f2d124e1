"""Random checkpoints are converted; drafts are those of the formula, and change no token."""

import json
import logging
import struct
from copy import deepcopy

import mtpcore_medusa
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from mtpcore import Batch, Context, ModelFileError, Sampling, link, load_model
from mtpcore.conversion import convert
from mtpcore.discovery.registry import describe_plugins
from mtpcore.drafting.upstream import head_role
from mtpcore.gguf import write_model_file
from mtpcore.testing import (
    Batching,
    Subject,
    Texts,
    check_drafts,
    check_graphs,
    check_rows,
    check_texts,
)
from mtpcore.testing.machine import machine_of

FEW = settings(
    max_examples=3, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)

WIDTH, N_VOCAB, N_HEADS, N_DRAFT, N_BLOCKS = 32, 48, 4, 20, 3
CLOSE = 2e-4
OF_VLLM = ["own output", "one output", "the target's output", "biases", "reduced", "blocks"]
OF_AUTHORS = ["authors'", "authors', blocks", "authors', the target's output"]
DTYPES = {"float32": "F32", "int64": "I64"}


def matrix(made, *shape):
    return (made.normal(size=shape) / shape[-1] ** 0.5).astype(np.float32)


def weights_of(kind, seed=0):
    """Return random weights by their published names."""
    made, found = np.random.default_rng(seed), {}
    n_out = N_DRAFT if kind == "reduced" else N_VOCAB
    n_blocks = N_BLOCKS if "blocks" in kind else 1
    for i in range(N_HEADS):
        for b in range(n_blocks):
            name = f"{i}.{b}.linear" if kind in OF_AUTHORS else f"blocks.{i}.layers.{b}"
            found[f"{name}.weight"] = 2 * matrix(made, WIDTH, WIDTH)
            if kind in OF_AUTHORS or kind == "biases":
                found[f"{name}.bias"] = matrix(made, WIDTH)
        if "output" not in kind or kind == "own output":
            name = f"{i}.{n_blocks}" if kind in OF_AUTHORS else f"lm_heads.{i}"
            found[f"{name}.weight"] = matrix(made, n_out, WIDTH)
    if kind == "one output":
        found["lm_head.weight"] = matrix(made, N_VOCAB, WIDTH)
    if kind == "reduced":
        found["token_map"] = np.sort(made.permutation(N_VOCAB)[:N_DRAFT])
    return found


def configuration(kind):
    """Return ``config.json``; that of the authors' first heads counts 2 of 5."""
    n_blocks = N_BLOCKS if "blocks" in kind else 1
    if kind in OF_AUTHORS:
        version = {"version": "2"} if "the target's output" in kind else {}
        return {
            "base_model_name_or_path": "somebody/some-model",
            "medusa_num_heads": 2,
            "medusa_num_layers": n_blocks,
            **version,
        }
    return {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": WIDTH,
        "num_heads": N_HEADS,
        "num_hidden_layers": n_blocks,
        "vocab_size": N_VOCAB,
    }


def write_checkpoint(folder, kind, weights, **changed):
    folder.mkdir()
    config = configuration(kind) | changed
    (folder / "config.json").write_text(json.dumps(config))
    header, data = {}, b""
    for name, values in weights.items():
        header[name] = {
            "dtype": DTYPES[str(values.dtype)],
            "shape": values.shape,
            "data_offsets": [len(data), len(data) + values.nbytes],
        }
        data += values.tobytes()
    text = json.dumps(header).encode()
    file = "medusa_lm_head" if kind in OF_AUTHORS else "model"
    (folder / f"{file}.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_target(folder):
    """Write a Llama of random weights, and its checkpoint as far as converting needs it."""
    made = np.random.default_rng(7)
    tensors = {
        "token_embd.weight": matrix(made, N_VOCAB, WIDTH),
        "output_norm.weight": np.ones(WIDTH, np.float32),
        "output.weight": matrix(made, N_VOCAB, WIDTH),
        "blk.0.attn_norm.weight": np.ones(WIDTH, np.float32),
        "blk.0.ffn_norm.weight": np.ones(WIDTH, np.float32),
        **{f"blk.0.attn_{x}.weight": matrix(made, WIDTH, WIDTH) for x in ("q", "k", "v", "output")},
        **{f"blk.0.ffn_{x}.weight": matrix(made, WIDTH, WIDTH) for x in ("gate", "up", "down")},
    }
    metadata = {
        "llama.block_count": 1,
        "llama.context_length": 256,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": WIDTH,
        "llama.attention.head_count": 4,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": 8,
    }
    write_model_file(folder / "llama.gguf", "llama", metadata, tensors)
    (folder / "target").mkdir()
    sizes = {"num_hidden_layers": 1, "hidden_size": WIDTH, "vocab_size": N_VOCAB}
    (folder / "target" / "config.json").write_text(json.dumps({"architectures": ["Any"], **sizes}))
    words = {word: i for i, word in enumerate(["a", "b", "ab", *map(chr, range(99, 144))])}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "post_processor": None,
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": words, "merges": ["a b"]},
    }
    (folder / "target" / "tokenizer.json").write_text(json.dumps(tokenizer))


@pytest.fixture(scope="module", params=OF_VLLM + OF_AUTHORS)
def medusa(request, tmp_path_factory):
    """A target with heads beside it, and their published weights."""
    kind, folder = request.param, tmp_path_factory.mktemp("medusa")
    weights = weights_of(kind)
    write_checkpoint(folder / "published", kind, weights)
    write_target(folder)
    convert(folder / "published", folder / "draft.gguf", outtype="f32", target=folder / "target")
    files = str(folder / "llama.gguf"), str(folder / "draft.gguf")
    subjects = {
        name: Subject(name, files[0], draft_path=files[1], drafter=name)
        for name in ("medusa", "medusa_tree")
    }
    if "the target's output" in kind:
        weights["lm_head.weight"] = subjects["medusa"].model.tensors["output.weight"].array()
    return subjects, weights, kind


def block_of(weights, head, b):
    """Return the name of a head's residual block; None after the last one."""
    names = (f"{head}.{b}.linear", f"blocks.{head}.layers.{b}")
    return next((name for name in names if f"{name}.weight" in weights), None)


def logits_of(weights, row, head):
    """As the reference code computes them; -inf for tokens that cannot be drafted."""
    x, b = row, 0
    while name := block_of(weights, head, b):
        z = weights[f"{name}.weight"] @ x + weights.get(f"{name}.bias", 0.0)
        x, b = x + z / (1 + np.exp(-z)), b + 1
    names = (f"lm_heads.{head}.weight", f"{head}.{b}.weight", "lm_head.weight")
    made = next(weights[name] for name in names if name in weights) @ x
    if "token_map" not in weights:
        return made
    every = np.full(N_VOCAB, -np.inf)
    every[weights["token_map"]] = made
    return every


def test_plugin_is_installed_and_found():
    (plugin,) = (p for p in describe_plugins() if p.name == "medusa")
    assert plugin.error is None
    assert plugin.distributions == ("mtpcore-medusa 0.1.0",)
    assert [spec.name for spec in plugin.drafters] == ["medusa", "medusa_tree"]


def test_drafts_are_those_of_the_formula(medusa):
    subjects, weights, _ = medusa

    def scores(tokens, rows, drafts):
        return [logits_of(weights, rows["hidden"][-1], head) for head in range(len(drafts))]

    assert check_drafts(subjects["medusa"], scores, k=N_HEADS, n_tokens=12, bound=1e-3) > 60


def test_logits_are_those_of_the_authors_modules(medusa):
    """Whose state has the names of the published file."""
    torch = pytest.importorskip("torch")
    subjects, weights, kind = medusa
    if kind not in OF_AUTHORS:
        return

    class ResBlock(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            return x + torch.nn.functional.silu(self.linear(x))

    n_blocks = N_BLOCKS if "blocks" in kind else 1
    output = torch.nn.Linear(WIDTH, N_VOCAB, bias=False)
    state = {name: torch.from_numpy(values.copy()) for name, values in weights.items()}
    if "lm_head.weight" in state:
        output.weight.data = state.pop("lm_head.weight")
    own = [] if "the target's output" in kind else [output]
    heads = torch.nn.ModuleList(
        torch.nn.Sequential(*(ResBlock() for _ in range(n_blocks)), *deepcopy(own))
        for _ in range(N_HEADS)
    )
    heads.load_state_dict(state)
    rows = np.random.default_rng(5).normal(size=(7, WIDTH)).astype(np.float32)
    cross = subjects["medusa"].link(threads=1)
    for n, head in enumerate(heads):
        with torch.no_grad():
            made = head(torch.from_numpy(rows))
            wanted = (made if own else output(made)).numpy()
        context = cross.contexts[head_role("draft", n)]
        batch = Batch(np.arange(7), pos=np.arange(7), outputs="all", slots={"hidden": rows})
        assert np.abs(context.process(batch).logits - wanted).max() < CLOSE
        assert np.ptp(wanted) > 1


@pytest.fixture
def refused(tmp_path):
    """Convert a changed checkpoint; return what is said, having seen that no file is left."""
    write_target(tmp_path)

    def run(kind, dropped=(), more=None, **changed):
        weights = weights_of(kind) | (more or {})
        weights = {name: values for name, values in weights.items() if name not in dropped}
        write_checkpoint(tmp_path / "published", kind, weights, **changed)
        with pytest.raises(ModelFileError) as error:
            convert(tmp_path / "published", tmp_path / "draft.gguf", target=tmp_path / "target")
        assert not (tmp_path / "draft.gguf").exists()
        return str(error.value)

    return run


@pytest.mark.parametrize(
    ("dropped", "said"),
    [
        ("2.0.linear.weight", "0, 1, 3"),
        ("3.0.linear.weight", "unknown: 3.0.linear.bias, 3.1.weight"),
        ("1.0.linear.bias", "missing: 1.0.linear.bias"),
        ("1.1.weight", "missing: 1.1.weight"),
    ],
)
def test_a_missing_tensor_is_named(refused, dropped, said):
    text = refused("authors'", dropped=[dropped])
    assert all(word in text for word in said.split(": "))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"0.7.scale": (WIDTH,)}, "0.7.scale"),
        ({"0.2.weight": (N_VOCAB, WIDTH)}, "0.2.weight"),
        ({"0.0.linear.weight": (WIDTH, WIDTH - 1)}, "blk.0.medusa.0.weight"),
        ({"0.0.linear.bias": (WIDTH + 1,)}, "blk.0.medusa.0.bias"),
        ({"1.1.weight": (N_VOCAB + 1, WIDTH)}, "blk.1.output.weight"),
    ],
)
def test_a_strange_tensor_is_named(refused, more, said):
    tensors = {name: np.ones(shape, np.float32) for name, shape in more.items()}
    assert said in refused("authors'", more=tensors)


def test_blocks_are_as_many_as_the_configuration_says(refused):
    text = refused("authors'", medusa_num_layers=2)
    assert "0.1.linear.weight" in text
    assert "0.1.weight" in text


def test_more_blocks_than_a_head_may_have(refused):
    assert "medusa_num_layers is 9" in refused("authors'", medusa_num_layers=9)


def test_an_output_matrix_that_one_head_lacks(refused):
    """It would be the target's."""
    assert "some heads have an output matrix" in refused("own output", ["lm_heads.2.weight"])


def test_heads_of_another_target(tmp_path):
    """Their configuration does not say how wide they are."""
    write_target(tmp_path)
    config = json.loads((tmp_path / "target" / "config.json").read_text())
    (tmp_path / "target" / "config.json").write_text(json.dumps(config | {"hidden_size": 64}))
    write_checkpoint(tmp_path / "published", "authors'", weights_of("authors'"))
    with pytest.raises(ModelFileError, match="the target's width"):
        convert(tmp_path / "published", tmp_path / "draft.gguf", target=tmp_path / "target")


def test_pickled_tensors_are_not_read(refused, tmp_path):
    refused("authors'", medusa_num_layers=9)
    (tmp_path / "published" / "medusa_lm_head.safetensors").rename(
        tmp_path / "published" / "medusa_lm_head.pt"
    )
    with pytest.raises(ModelFileError, match=r"\.safetensors files") as error:
        convert(tmp_path / "published", tmp_path / "draft.gguf", target=tmp_path / "target")
    assert "medusa_lm_head.pt" in error.value.got


@pytest.mark.parametrize("n_heads", [2, N_HEADS, 5])
def test_heads_are_counted_by_their_tensors(tmp_path, caplog, n_heads):
    write_target(tmp_path)
    weights = weights_of("authors'")
    write_checkpoint(tmp_path / "published", "authors'", weights, medusa_num_heads=n_heads)
    with caplog.at_level(logging.WARNING, "mtpcore"):
        convert(tmp_path / "published", tmp_path / "draft.gguf", target=tmp_path / "target")
    said = f"counts {n_heads} heads, the tensors are of {N_HEADS}" in caplog.text
    assert said == (n_heads != N_HEADS)
    with load_model(tmp_path / "llama.gguf") as model, load_model(tmp_path / "draft.gguf") as heads:
        cross = link(Context(model, 64), "medusa", draft_model=heads)
        cross.llm.process(Batch.of([5, 6, 7]))
        assert len(cross.draft(0, 8)) == N_HEADS


def test_a_tree_holds_the_best_tokens_of_each_head(medusa):
    subjects, weights, _ = medusa
    model, draft_model = subjects["medusa"].model, subjects["medusa"].draft_model
    llm = Context(model, 64, taps=["hidden"])
    cross = link(llm, "medusa_tree", draft_model=draft_model)
    row = llm.process(Batch.of([5, 6, 7])).tap("hidden")[-1]
    tree = cross.draft(0, N_HEADS)
    best = [np.argsort(-logits_of(weights, row, head))[:3] for head in range(N_HEADS)]
    paths = mtpcore_medusa.MEDUSA_TREE.tree.paths
    assert len(tree) == len(paths) == 24
    for path, node in zip(paths, range(len(tree)), strict=True):
        tokens = []
        while node >= 0:
            tokens.append(tree.tokens[node])
            node = tree.parent[node]
        assert tokens[::-1] == [best[head][rank] for head, rank in enumerate(path)]


def test_the_backend_computes_the_graphs(medusa):
    assert check_graphs(medusa[0]["medusa"]) > 0


def test_what_others_ask_makes_no_difference(medusa):
    check_rows(medusa[0]["medusa"], Batching(chunk=4, n_batch=3, neighbours=2))


few_kinds = pytest.mark.parametrize("medusa", ["reduced", "authors', blocks"], indirect=True)
"""Which tokens are drafted differs among kinds, and nothing of how they are verified."""


@few_kinds
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["medusa", "medusa_tree"])
def test_drafting_changes_no_token(medusa, temperature, name):
    texts = Texts(k=N_HEADS, sampling=Sampling(temperature=temperature, seed=3))
    assert 0 <= check_texts(medusa[0][name], texts) <= 1


@few_kinds
def test_nothing_is_left_of_rejected_drafts(medusa):
    """Whatever is drafted, verified, taken back and copied, every role is as one that is new."""
    for subject in medusa[0].values():
        run_state_machine_as_test(machine_of(subject), settings=FEW)
