"""From texts to files: runs that were interrupted, files that are merged, both forms."""

from contextlib import contextmanager

import numpy as np
import pytest
from harness.fixtures import model_file

from mtpcore.calibration.chunks import cut_chunks
from mtpcore.calibration.collecting import collect_importance, merge_importance
from mtpcore.calibration.settings import ImportanceSettings
from mtpcore.calibration.statistics import matrix_statistics
from mtpcore.conversion import quantize
from mtpcore.conversion.importance import read_importance
from mtpcore.conversion.importance_file import read_sums
from mtpcore.errors import BatchError, ModelFileError
from mtpcore.gguf import open_model_file

SIZE = 32


@pytest.fixture(scope="module")
def glm():
    return model_file("glm-11", "q8_0")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "text"
    path.write_text(" ".join(f"word {i} and {i * i}\n" for i in range(120)))
    return path


class Stop(Exception):
    """What interrupts a run."""


def watching(chunks=None, said=None):
    @contextmanager
    def watch(_title):
        def report(done, total):
            if said is not None:
                said.append((done, total))
            if chunks is not None and done >= chunks * SIZE:
                raise Stop

        yield report

    return watch


def collect(model, text, out, watch=None, form="gguf", merged=(), **settings):
    settings = ImportanceSettings(**({"chunk_size": SIZE, "n_chunks": 6, "rows": 64} | settings))
    return collect_importance(
        *(model, [text], out, settings, watch or watching()), form=form, merged=merged, threads=1
    )


def test_an_interrupted_run_goes_on_and_makes_the_same_file(glm, text, tmp_path):
    whole = collect(glm, text, tmp_path / "a")
    with pytest.raises(Stop):
        collect(glm, text, tmp_path / "b", watching(chunks=2))
    assert read_sums(tmp_path / "b").n_chunks == 2
    said = []
    rest = collect(glm, text, tmp_path / "b", watching(said=said))
    assert said[0] == (2 * SIZE, 6 * SIZE)
    assert (rest.n_before, rest.n_read, rest.n_chunks) == (2, 4, 6)
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
    assert rest.perplexity == whole.perplexity
    again = collect(glm, text, tmp_path / "b", n_chunks=7)
    assert (again.n_before, again.n_read) == (6, 1)


@pytest.mark.parametrize(
    "other", [{"with_output": True}, {"heads": False}, {"first_chunk": 1}, {"chunk_size": 16}]
)
def test_what_another_run_wrote_is_replaced(glm, text, tmp_path, other):
    collect(glm, text, tmp_path / "a", n_chunks=2)
    made = collect(glm, text, tmp_path / "a", **{"n_chunks": 2} | other)
    assert made.n_before == 0
    collect(glm, text, tmp_path / "b", **{"n_chunks": 2} | other)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_sums_do_not_depend_on_the_size_of_batches(glm, text, tmp_path):
    collect(glm, text, tmp_path / "a", rows=2 * SIZE)
    for rows, handed_out in ((SIZE, 1 << 28), (24, 1 << 28), (512, 1)):
        collect(glm, text, tmp_path / "b", rows=rows, handed_out=handed_out)
        found, wanted = (read_sums(tmp_path / name) for name in "ba")
        for name, sums in wanted.sums.items():
            np.testing.assert_allclose(found.sums[name], sums, rtol=1e-6)
            np.testing.assert_array_equal(found.counts[name], wanted.counts[name])


def test_chunks_that_are_passed_over_and_files_that_are_merged(glm, text, tmp_path):
    """Two halves together, one after the other or side by side, are the whole."""
    whole = collect(glm, text, tmp_path / "whole")
    collect(glm, text, tmp_path / "first", n_chunks=3)
    collect(glm, text, tmp_path / "second", n_chunks=3, first_chunk=3)
    merged = merge_importance([tmp_path / "first", tmp_path / "second"], tmp_path / "merged")
    asked = {"n_chunks": 3, "first_chunk": 3}
    collect(glm, text, tmp_path / "on", merged=[tmp_path / "first"], **asked)
    wanted = read_sums(tmp_path / "whole")
    for name in ("merged", "on"):
        found = read_sums(tmp_path / name)
        assert found.n_chunks == 6
        for tensor, sums in wanted.sums.items():
            np.testing.assert_allclose(found.sums[tensor], sums, rtol=1e-5)
            np.testing.assert_array_equal(found.counts[tensor], wanted.counts[tensor])
    assert merged.n_matrices == whole.n_matrices
    assert found.datasets == (str(text), str(text))


def test_the_old_form_has_the_same_weights(glm, text, tmp_path):
    for form in ("gguf", "dat"):
        collect(glm, text, tmp_path / form, form=form)
    assert (tmp_path / "dat").read_bytes()[:4] != b"GGUF"
    found, wanted = (read_importance(tmp_path / form) for form in ("dat", "gguf"))
    assert found.n_chunks == wanted.n_chunks == 6
    assert found.datasets == wanted.datasets
    for name, weights in wanted.weights.items():
        np.testing.assert_allclose(found.weights[name], weights, rtol=1e-6)


def test_copies_are_kept_on_the_way(glm, text, tmp_path):
    collect(glm, text, tmp_path / "a.gguf", keep_every=2, save_every=0)
    kept = {path.name: read_sums(path).n_chunks for path in tmp_path.glob("a.gguf.at_*")}
    assert kept == {"a.gguf.at_2": 2, "a.gguf.at_4": 4, "a.gguf.at_6": 6}


def test_quantize_uses_the_weights_of_heads(glm, text, tmp_path, caplog):
    """With them other bytes come out, of trunk and head; and nothing is said to lack weights."""
    source = model_file("glm-11", "f16")
    collect(source, text, tmp_path / "weights")
    made = {}
    for name, importance in (("plain", None), ("weighted", tmp_path / "weights")):
        asked = {"outtype": "q4_k_m", "mtp_type": "mix", "importance": importance}
        quantize(source, tmp_path / name, **asked)
        with open_model_file(tmp_path / name) as file:
            made[name] = {one: tensor.raw().tobytes() for one, tensor in file.tensors.items()}
            assert ("quantize.imatrix.entries_count" in file.metadata) == (name == "weighted")
    changed = {one for one in made["plain"] if made["plain"][one] != made["weighted"][one]}
    assert {"blk.4.nextn.eh_proj.weight", "blk.4.ffn_up_exps.weight", "blk.0.ffn_up.weight"} <= (
        changed
    )
    assert "no weights" not in caplog.text


def test_texts_and_places_that_do_not_do(glm, text, tmp_path):
    (tmp_path / "short").write_text("one two")
    with pytest.raises(BatchError, match="shorter than a chunk"):
        collect(glm, tmp_path / "short", tmp_path / "a")
    with pytest.raises(BatchError, match="no chunk of the text is left"):
        collect(glm, text, tmp_path / "a", first_chunk=1000)
    for out in (tmp_path / "no" / "a", tmp_path, glm):
        with pytest.raises(ModelFileError, match="cannot be written there"):
            collect(glm, text, out)
    assert {path.name for path in tmp_path.iterdir()} == {"short"}


def test_chunks_begin_with_the_mark_that_begins_texts():
    tokens = np.arange(10, dtype=np.int32)
    assert cut_chunks(tokens, 4, None).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert cut_chunks(tokens, 4, 99).tolist() == [[99, 1, 2, 3], [99, 5, 6, 7]]
    assert tokens.tolist() == [*range(10)]


def test_statistics_by_their_formulas(glm, text, tmp_path):
    collect(glm, text, tmp_path / "a")
    found = read_sums(tmp_path / "a")
    by_name = {one.name: one for one in matrix_statistics(found)}
    assert by_name.keys() == {name for name, counts in found.counts.items() if counts.any()}
    one = by_name["blk.1.ffn_down_shexp.weight"]
    values = found.sums[one.name][0].astype(np.float64) / found.counts[one.name][0]
    shares = values / values.sum()
    assert one.total == pytest.approx(values.sum(), rel=1e-5)
    assert one.entropy == pytest.approx(-(shares * np.log2(shares)).sum(), rel=1e-5)
    assert one.outliers == (values > values.mean() + values.std()).mean()
    assert one.similarity is None  # the layer before has no shared expert
    q = by_name["blk.2.attn_q.weight"]
    a, b = (found.sums[f"blk.{i}.attn_q.weight"][0].astype(np.float64) for i in (1, 2))
    assert q.similarity == pytest.approx(a @ b / np.sqrt(a @ a * (b @ b)))
