import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import files
import numpy as np
import pytest
from files import generate
from shapes import SHAPES, byte_letters, scaled_down
from timing import Reader
from versus import cells, speculation
from versus.cells import Arena, measure
from versus.hold import Hold
from versus.ours import Ours
from versus.recurrence import memory_kept, without_recurrence
from versus.work import Work

import mtpcore


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    return tmp_path_factory.mktemp("generated")


@pytest.fixture
def folder(monkeypatch, generated):
    """Where files of these shapes lie, of few layers."""
    for name, shape in SHAPES.items():
        small = scaled_down(shape, n_layers=2, n_vocab=512, n_nextn=shape.n_nextn)
        monkeypatch.setitem(SHAPES, name, small)
    return generated


@pytest.mark.parametrize("name", SHAPES)
def test_a_vocabulary_is_as_long_as_the_shape_says(name):
    shape = SHAPES[name]
    metadata = shape.metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    assert len(tokens) == len(set(tokens)) == shape.n_vocab
    known = set(tokens)
    for merge in metadata.get("tokenizer.ggml.merges", ())[::977]:
        left, right = merge.split(" ")
        assert {left, right, left + right} <= known


def test_letters_for_bytes_are_those_of_the_tokenizer():
    from tokenizers.pre_tokenizers import ByteLevel

    assert set(byte_letters()) == set(ByteLevel.alphabet())


@pytest.mark.parametrize(
    "name", ["llama-100m", "qwen2-1.5b", "glm-moe-1b", "mimo-1b", "qwen35-0.8b", "qwen35moe-1b"]
)
def test_generated_files_load_and_give_finite_logits(name, folder):
    path = generate(f"{name}-q8_0", folder, by="mtpcore")
    model = mtpcore.load_model(path)
    assert bool(model.drafters) == (SHAPES[name].n_nextn > 0)
    out = mtpcore.Context(model, 16).process(mtpcore.Batch.of([3, 4, 5], outputs="all"))
    assert np.isfinite(out.logits).all()
    assert 0.1 < out.logits.std() < 1000


def test_rows_are_repeated_and_nothing_else_is(folder):
    whole = mtpcore.load_model(generate("mimo-1b-q8_0", folder, by="mtpcore"))
    table = whole.tensors["blk.0.ffn_up.weight"].array()
    eighth = len(table) // 8
    assert np.array_equal(table[:eighth], table[-eighth:])
    assert len(np.unique(table[:eighth, 0])) > eighth // 4
    norm = whole.tensors["blk.0.attn_norm.weight"].array()
    assert len(np.unique(norm)) > len(norm) // 2


BOTH = """
import sys
from pathlib import Path
import msgspec
import numpy as np
from files import generate
from shapes import SHAPES, scaled_down
from timing import Reader
from versus.cells import Arena, measure
shape = sys.argv[1].rsplit("-", 1)[0]
SHAPES[shape] = scaled_down(SHAPES[shape], 2, 512, 1)
if "qwen35" in shape:  # one layer of each kind: llama.cpp aborts where none is of attention
    SHAPES[shape] = msgspec.structs.replace(SHAPES[shape], interval=2)
if "moe" in shape:
    SHAPES[shape] = msgspec.structs.replace(SHAPES[shape], n_experts=8, n_used=2)
arena = Arena("tiny", generate(sys.argv[1], Path(sys.argv[2])), 1)
text = [*range(3, 15)]
ours = arena.ours.process(text, every=True)
print("mtpcore ran", file=sys.stderr, flush=True)
theirs = [one.process(text, every=True).copy() for one in arena.theirs.values()]
arena.depth = 8
for cell in ("prefill", "decode", "verify"):
    measure(arena, cell, 1, Reader(1, 1 << 20))
    assert {engine.depth for engine in arena.engines} == {0 if cell == "prefill" else 8}
print(len(theirs), *(np.median(np.abs(one - ours).max(1)) / ours.std() for one in theirs))
every = [engine.process(arena.text[8:12], every=True).copy() for engine in arena.engines]
for engine in arena.engines:
    engine.rewind(0)
fresh = [engine.process(arena.text[:12], every=True)[8:] for engine in arena.engines]
print(*(np.median(np.abs(a - b).max(1)) / b.std() for a, b in zip(every, fresh)))
arena.close()
"""


@pytest.mark.parametrize(
    "name", ["glm-moe-1b-q8_0", "glm-moe-1b-q4_k_m", "qwen35-0.8b-q8_0", "qwen35moe-1b-q4_0"]
)
def test_llama_cpp_runs_the_same_file(name, tmp_path):
    """And after all cells both go on from the text that they were given."""
    if not find_spec("llama_cpp"):
        pytest.skip("llama-cpp-python is not installed")
    command = [sys.executable, "-c", BOTH, name, str(tmp_path)]
    folder = Path(files.__file__).parent
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode < 0 and "mtpcore ran" in done.stderr:
        pytest.skip(f"llama-cpp-python as built here ends by signal {-done.returncode}")
    assert done.returncode == 0, done.stderr
    first, gone_on = done.stdout.splitlines()
    n_settings, *errors = map(float, first.split())
    assert n_settings == len(errors) == 4
    # Both round activations to eight bits, at other places: a row may meet another expert.
    assert max(errors) < 0.2
    ours, *theirs = map(float, gone_on.split())
    assert ours == 0
    assert max(theirs) < 0.1  # llama.cpp's bits depend on the batch


ROUNDS = """
import sys
from pathlib import Path
import msgspec
import numpy as np
from files import generate
from shapes import SHAPES, scaled_down
from versus.peer import Peer, PeerModel
from versus.peer_speculation import PeerRounds
small = scaled_down(SHAPES["qwen35-0.8b"], 2, 512, 1)
SHAPES["qwen35-0.8b"] = msgspec.structs.replace(small, interval=2)
path = generate("qwen35-0.8b-q8_0", Path(sys.argv[1]), by="mtpcore")
model = PeerModel(path, True, mtp=True)
text = np.random.default_rng(3).integers(3, 512, 80).tolist()
rounds = PeerRounds(model, True, 80, 1, n_draft=3)
rounds.fill(text[:20])
rounds.write(text, 7)
at = rounds.target.depth
assert at == rounds.head.depth == 20 + 7 + 13
gone_on = rounds.target.process(text[at : at + 4], every=True).copy()
plain = Peer(model, True, 80, 1)
wanted = plain.process(text[: at + 4], every=True)[at:]
print(np.abs(gone_on - wanted).max() / wanted.std())
rounds.close()
plain.close()
"""


def test_llama_cpp_drafts_and_takes_back(tmp_path):
    """After rounds with rejected drafts its target is where its text is."""
    if not find_spec("llama_cpp"):
        pytest.skip("llama-cpp-python is not installed")
    command = [sys.executable, "-c", ROUNDS, str(tmp_path)]
    folder = Path(files.__file__).parent
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if "undefined symbol" in done.stderr:
        pytest.skip("llama.cpp as built here does not export what its own programs use")
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 0.1  # llama.cpp's bits depend on the batch


def test_a_row_of_a_mixture_reads_its_share_of_the_experts(folder):
    model = mtpcore.load_model(generate("glm-moe-1b-q8_0", folder, by="mtpcore"), mtp=False)
    shape, work = SHAPES["glm-moe-1b"], Work.of(model)
    expert = 3 * shape.width * shape.expert_width
    assert work.experts == expert * shape.n_experts * 34 // 32
    assert work.n_bytes(1) == work.shared + work.experts * shape.n_used / shape.n_experts
    assert work.n_bytes(4) == pytest.approx(work.shared + work.experts * (1 - 0.75**4))
    attention = shape.width * shape.head_width * 2 * (shape.n_heads + shape.n_kv_heads)
    dense = 3 * shape.width * shape.ff_width
    router = shape.width * shape.n_experts
    shared = expert  # the shared expert is as wide as one of the others
    assert work.macs == 2 * attention + dense + router + shared + expert * shape.n_used


def test_only_the_recurrence_is_left_out(folder):
    """All matrices are read; no state is kept, whose sizes are those of the shape."""
    shape = SHAPES["qwen35-0.8b"]
    path = generate("qwen35-0.8b-q8_0", folder, by="mtpcore")
    whole, bare = Ours(mtpcore.load_model(path), 16, 1), without_recurrence(path, 16, 1)
    kept = memory_kept(whole.context)
    n, width = shape.n_linear_values, shape.linear_width
    channels = 2 * shape.n_linear_keys * width + n * width
    assert kept["checkpoint_mib"] == 2 * 4 * (n * width**2 + 3 * channels) / 2**20
    assert kept["log_row_mib"] >= 2 * 4 * channels / 2**20
    assert memory_kept(bare.context) == {}
    programs = [one.context.runner.program for one in (whole, bare)]
    names = [[node.op for node in program.nodes] for program in programs]
    assert {"delta_rule", "causal_conv"} < {*names[0]}
    assert {"delta_rule", "causal_conv"}.isdisjoint(names[1])
    assert names[0].count("matmul") == names[1].count("matmul")


@pytest.mark.parametrize("name", ["llama-100m-q8_0", "qwen35-0.8b-q8_0"])
def test_cells_leave_the_text_at_its_depth(name, folder, monkeypatch):
    for what, value in (("DEPTH", 64), ("DECODED", 8)):
        monkeypatch.setattr(cells, what, value)
    arena = Arena("tiny", generate(name, folder, by="mtpcore"), 1, peer=False)
    for cell in ("prefill", "decode", "verify"):
        for found in measure(arena, cell, 1, Reader(1, 1 << 20)):
            assert len(found.ours) == 1
            assert found.cell.startswith(cell)
            assert ("recurrence" in found.more) == (cell == "decode" and "qwen35" in name)
        depth = 0 if cell == "prefill" else arena.depth
        assert arena.ours.depth == arena.ours.context.length(0) == depth


def test_drafts_are_measured_of_all_tokens_and_of_few(folder, monkeypatch):
    for name, value in (("DEPTH", 8), ("ROUNDS", 2), ("FEW", 100)):
        monkeypatch.setattr(speculation, name, value)
    path = generate("qwen35-0.8b-q8_0", folder, by="mtpcore")
    every, few = speculation.measure_speculation("tiny", path, 1, 1, Hold())
    assert [found.cell for found in (every, few)] == ["speculation", "speculation-100"]
    model = mtpcore.load_model(path)
    trunk, head = Work.of(model), Work.of(model, head=True)
    less = head.n_bytes(1) - model.tensors["token_embd.weight"].n_bytes * 412 // 512
    for found, drafted in ((every, head.n_bytes(1)), (few, less)):
        assert len(found.ours) == len(found.theirs["plain, ours"]) == 1
        assert found.more["by_bytes"] == pytest.approx(
            2.8 * trunk.n_bytes(1) / (trunk.n_bytes(4) + 3 * drafted)
        )
