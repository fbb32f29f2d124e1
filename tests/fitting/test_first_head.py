"""The head that a fit begins with, written and run: all of a fit but its steps, without JAX."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from mtpcore_eagle3 import fitted_file

import mtpcore
from mtpcore.discovery.registry import registry
from mtpcore.fitting.measuring import measure_head
from mtpcore.fitting.teacher import Teacher, output_rows, table_rows
from mtpcore.fitting.texts import cut_pieces, encode_file
from mtpcore.fitting.writing import read_head, write_head

ROOM = Path(mtpcore.__file__).parent
SHAPE = SimpleNamespace(ARCHITECTURE=fitted_file.ARCHITECTURE, metadata=fitted_file.metadata)
WINDOW, N_TOKENS, VOCABULARY = 128, 4000, np.arange(600)


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Return the path of a model, a head beside it, its weights, and texts that nobody read."""
    folder = tmp_path_factory.mktemp("first")
    path, out = folder / "model.gguf", folder / "model-draft.gguf"
    shutil.copy(ROOM / "data" / "demo-eagle3.gguf", path)
    spec = next(spec for spec in registry().drafters if spec.fitting)
    with mtpcore.load_model(path, sidecars=False) as target:
        encode = target.tokenizer.encode
        tokens = encode_file(target.tokenizer, ROOM / "cross" / "speculation.py", N_TOKENS)
        teacher = Teacher(target, fitted_file.taps(target), folder / "work", WINDOW, threads=1)
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
        weights = fitted_file.scaled(fitted_file.begin(target, *known, sample, 0), 1.0 / scale)
        write_head(out, target, spec, SHAPE, weights, VOCABULARY, "the first weights", registry())
        prompts = [
            np.array(encode(text), np.int32) for text in ("def read(self", "import numpy as")
        ]
    return path, out, weights, prompts


def test_it_drafts_more_often_than_chance(begun):
    path, out, _, prompts = begun
    with (
        mtpcore.load_model(path, sidecars=False) as target,
        mtpcore.load_model(out, sidecars=False) as head,
    ):
        measured = measure_head(target, head, prompts, 32, lambda done, total: None, threads=1)
    assert min(one.acceptance[0] for one in measured) > 0.3  # 0.2 with taps in another scale


def test_the_file_is_laid_out_as_one_that_others_read(begun):
    """As the packaged head, which llama.cpp loads: tests/plugins/test_drafters_llama_cpp.py."""

    def layout(path):
        with mtpcore.load_model(path, sidecars=False) as head:
            keys = {k: type(v) for k, v in head.metadata.items() if not k.startswith("general.")}
            return keys, {name: one.type_name for name, one in head.tensors.items()}

    assert layout(begun[1]) == layout("demo:eagle3-draft")


def test_it_is_read_as_it_was_written(begun):
    path, out, weights, _ = begun
    with mtpcore.load_model(path, sidecars=False) as target:
        spec = next(spec for spec in registry().drafters if spec.fitting)
        found = read_head(out, target, spec, SHAPE, registry())
    assert found.vocabulary.tolist() == VOCABULARY.tolist()
    assert found.weights.keys() == weights.keys()
    for name, values in weights.items():
        most = np.abs(values).max()
        assert np.abs(found.weights[name] - values).max() <= 0.01 * most, name
