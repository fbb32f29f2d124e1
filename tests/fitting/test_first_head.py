"""Heads that a fit begins with, written and run: all of a fit but its steps, without JAX."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import mtpcore
from mtpcore.discovery.loading import find_model
from mtpcore.discovery.registry import registry
from mtpcore.fitting.measuring import measure_heads
from mtpcore.fitting.shape import find_shapes
from mtpcore.fitting.teacher import Teacher, output_rows, table_rows
from mtpcore.fitting.texts import cut_pieces, encode_file
from mtpcore.fitting.writing import read_head, write_head
from mtpcore.testing import Subject, check_drafts

ROOM = Path(mtpcore.__file__).parent
SHAPES = {spec.name: (spec, shape) for spec, shape in find_shapes(registry())}
DEPTH = 3
WINDOW, N_TOKENS, VOCABULARY = 128, 4000, np.arange(600)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("first")
    shutil.copy(find_model("demo:eagle3"), made / "model.gguf")
    return made


@pytest.fixture(scope="module", params=SHAPES)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def begun(folder, name):
    """Return the path of a head, its weights, and the size of each column of its taps."""
    out, (spec, shape) = folder / f"{name}.gguf", SHAPES[name]
    with mtpcore.load_model(folder / "model.gguf", sidecars=False) as target:
        tokens = encode_file(target.tokenizer, ROOM / "cross" / "speculation.py", N_TOKENS)
        teacher = Teacher(target, shape.taps(target), folder / "work", WINDOW, threads=1)
        shard = teacher.read(cut_pieces(tokens, WINDOW))
        table = target.tensors["token_embd.weight"]

        pieces = [shard.read(i) for i in range(len(shard.begins) - 1)]
        taps = np.concatenate([piece.taps for piece in pieces]).astype(np.float32)
        scale = np.sqrt(np.mean(np.square(taps), axis=0))

        def sample():
            for piece in pieces:
                hidden = piece.hidden[1:].astype(np.float32)
                yield table_rows(table, piece.tokens[1:]), piece.taps[:-1] / scale, hidden

        known = table_rows(table, VOCABULARY), output_rows(target, VOCABULARY)
        weights = shape.scaled(shape.begin(target, *known, sample, 0, DEPTH), 1.0 / scale)
        write_head(
            out, target, spec, shape, weights, VOCABULARY, DEPTH, "the first weights", registry()
        )
    return out, weights, scale


def test_it_drafts_more_often_than_chance(begun, folder, name):
    with (
        mtpcore.load_model(folder / "model.gguf", sidecars=False) as target,
        mtpcore.load_model(begun[0], sidecars=False) as head,
    ):
        prompts = [
            np.array(target.tokenizer.encode(text), np.int32)
            for text in ("def read(self", "import numpy as")
        ]
        measured = measure_heads(target, {name: head}, prompts, 32, lambda *args: None, threads=1)
    assert min(one.acceptance[0] for one in measured[name]) > 0.3  # 0.2 with taps in another scale


def layout(path):
    with mtpcore.load_model(path, sidecars=False) as head:
        keys = {k: type(v) for k, v in head.metadata.items() if not k.startswith("general.")}
        return keys, {name: one.type_name for name, one in head.tensors.items()}


def test_the_file_is_laid_out_as_one_that_others_read(begun, name):
    """As the packaged head, which llama.cpp loads: tests/plugins/test_drafters_llama_cpp.py."""
    keys, tensors = layout("demo:eagle3-draft")
    if name == "peagle":
        keys = {key.replace("eagle3.", "peagle."): kind for key, kind in keys.items()}
        keys |= {"peagle.block_size": int, "tokenizer.ggml.mask_token_id": int}
        tensors |= {"mask_hidden.weight": "F32"}
    assert layout(begun[0]) == (keys, tensors)


def test_it_is_read_as_it_was_written(begun, folder, name):
    out, weights, _ = begun
    with mtpcore.load_model(folder / "model.gguf", sidecars=False) as target:
        found = read_head(out, target, *SHAPES[name], DEPTH, registry())
    assert found.vocabulary.tolist() == VOCABULARY.tolist()
    assert found.weights.keys() == weights.keys()
    for tensor, values in weights.items():
        most = np.abs(values).max()
        assert np.abs(found.weights[tensor] - values).max() <= 0.01 * most, tensor


def test_the_runtime_computes_what_is_trained(begun, folder, name):
    """The graph by which a head is trained scores each draft of the runtime best.

    The weights are random: with those that a fit begins with, whole parts of it do not count.
    """
    spec, shape = SHAPES[name]
    path, n_most, k = folder / f"{name}-random.gguf", 16, DEPTH
    random = np.random.default_rng(1)
    weights = {
        tensor: random.standard_normal(values.shape)
        * (2 * values.shape[-1] ** -0.5 if values.ndim > 1 else 1)
        for tensor, values in begun[1].items()
    }
    weights = shape.scaled(weights, 1.0 / begun[2])
    with mtpcore.load_model(folder / "model.gguf", sidecars=False) as target:
        write_head(path, target, spec, shape, weights, VOCABULARY, DEPTH, "random", registry())
    subject = Subject(name, folder / "model.gguf", path)
    target, head = subject.model, subject.draft_model
    weights = {tensor: one.array() for tensor, one in head.tensors.items()}
    vocabulary = weights.pop("d2t").astype(int)
    table = target.tensors["token_embd.weight"].array()

    def scores(tokens, rows, drafts):
        n = len(tokens) - 1
        following = np.resize([*tokens[1:], *drafts], n_most + k)
        taps = np.zeros((1, n_most + k, 3 * table.shape[1]), np.float32)
        taps[0, :n] = np.concatenate([rows[tap] for tap in shape.taps(target)], axis=1)
        made = shape.draft(weights, table[following][None], taps, len(drafts), target)
        logits = np.full((len(drafts), target.hparams.n_vocab), -np.inf)
        for step, row in enumerate(made):
            logits[step, vocabulary] = row[0, n - 1] @ weights["output.weight"].T
        return logits

    assert check_drafts(subject, scores, k=k, n_tokens=n_most) >= n_most


def test_weights_for_scaled_taps_draft_the_same(begun, folder, name):
    _, shape = SHAPES[name]
    weights, random = begun[1], np.random.default_rng(2)
    with mtpcore.load_model(folder / "model.gguf", sidecars=False) as target:
        width = target.hparams.width
        scale = np.exp(random.normal(size=3 * width)).astype(np.float32)
        embeddings = random.normal(size=(1, 9, width)).astype(np.float32)
        taps = random.normal(size=(1, 9, 3 * width)).astype(np.float32)
        wanted = shape.draft(weights, embeddings, taps * scale, DEPTH, target)
        made = shape.draft(shape.scaled(weights, scale), embeddings, taps, DEPTH, target)
    for step in range(DEPTH):
        assert np.abs(made[step] - wanted[step]).max() < 1e-3 * np.abs(wanted[step]).max(), step
