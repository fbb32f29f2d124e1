"""Saved sequences of a context: what follows is the same, and what does not fit is refused."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from harness.families import FAMILIES
from programs import N_VOCAB, trunk

from mtpcore import Batch, BatchError, Context, LinkError, StateError, link, load_model
from mtpcore.backends.cpu import CpuBackend
from mtpcore.backends.reference import ReferenceBackend
from mtpcore.memory import PAGE, SPARE
from mtpcore.testing import Runner

TOKENS = np.random.default_rng(5).integers(0, 200, 90)


def filled(n=70, seq=0, **options):
    context = Context(load_model("demo"), 128, **{"threads": 1, "n_seq_max": 3} | options)
    context.process(Batch.of(TOKENS[:n], seq=seq))
    return context


def logits(context, seq, n=70):
    return context.process(Batch.of(TOKENS[n:], seq=seq, pos=n, outputs="all")).logits


@pytest.mark.parametrize("kv_dtype", ["f16", "f32", "q8_0"])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_sequence_goes_on_in_any_context(backend, kv_dtype):
    """Another number, other sizes, other threads: the same state and the same bits."""
    context = filled(backend=backend, kv_dtype=kv_dtype, seq=1)
    saved = context.save(1)
    options = {"threads": 2, "n_batch": 7, "n_seq_max": 4, "taps": ["hidden"]}
    other = Context(load_model("demo"), 95, backend=backend, kv_dtype=kv_dtype, **options)
    other.process(Batch.of(TOKENS[:30], seq=0))
    other.load(3, saved)
    assert other.length(3) == 70
    assert other.digest(3) == context.digest(1)
    assert other.save(3) == saved
    assert np.array_equal(logits(other, 3), logits(context, 1))


def test_a_file_is_what_the_bytes_are(tmp_path):
    context, path = filled(), tmp_path / "a.state"
    path.write_bytes(b"old")
    assert context.save(0, path) is None
    assert path.read_bytes() == context.save(0)
    assert list(tmp_path.iterdir()) == [path]
    for seq, source in ((1, path), (2, str(path))):
        context.load(seq, source)
        assert context.digest(seq) == context.digest(0)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_of_any_kind_are_taken(kind):
    context = filled()
    context.load(1, kind(context.save(0)))
    assert context.digest(1) == context.digest(0)


def test_an_empty_sequence_is_a_state_too():
    context = filled()
    context.load(2, context.save(1))
    assert context.length(2) == 0
    context.process(Batch.of(TOKENS[:70], seq=2))
    assert context.digest(2) == context.digest(0)


def test_a_later_use_of_the_pages_changes_no_state():
    """Rows were copied out: neither side sees what the other one does later."""
    context = filled()
    saved, before = context.save(0), context.digest(0)
    context.load(1, saved)
    context.rewind(0, 3)
    context.process(Batch.of(TOKENS[::-1], seq=0, pos=3))
    assert context.digest(1) == before
    context.load(2, saved)
    assert context.digest(2) == before


def test_sequences_that_hold_tokens_are_not_overwritten():
    context = filled()
    saved, before = context.save(0), context.digest(0)
    with pytest.raises(BatchError, match="empty sequence"):
        context.load(0, saved)
    assert context.digest(0) == before
    with pytest.raises(BatchError, match="no such sequence"):
        context.load(3, saved)


def test_an_undecided_tree_is_not_saved():
    context = filled()
    context.process(Batch([1, 2], seq=0, pos=[70, 70], parent=[-1, -1]))
    with pytest.raises(BatchError, match="undecided"):
        context.save(0)
    context.keep(0, [1])
    context.load(1, context.save(0))
    assert context.digest(1) == context.digest(0)


def test_a_linked_context_is_saved_by_its_cross():
    context = filled()
    saved = context.save(0)
    cross = link(Context(load_model("demo"), 128, threads=1))
    with pytest.raises(LinkError, match="load"):
        cross.llm.load(0, saved)
    with pytest.raises(LinkError, match="save"):
        cross.llm.save(0)


def refused(saved, match, **options):
    context = Context(**{"model": load_model("demo"), "n_ctx": 128, "threads": 1} | options)
    before = context.digest(0)
    with pytest.raises(StateError, match=match):
        context.load(0, saved)
    assert context.digest(0) == before


def test_what_a_state_is_not_of():
    saved = filled().save(0)
    refused(saved, "role context: the state is of another backend", backend="reference")
    refused(saved, "another type of keys and values", kv_dtype="f32")
    refused(saved, "another graph", graph_type="draft")
    refused(saved, "the state is larger|longer than the context", n_ctx=69)
    other = next(one for one in FAMILIES if one.path != "demo")
    refused(saved, "another model file", model=other.model)
    with pytest.raises(StateError, match="the state is of a Context"):
        link(Context(load_model("demo"), 128, threads=1)).load(0, saved)


def test_a_weight_or_a_word_of_metadata_makes_another_model(tmp_path):
    saved, whole = filled().save(0), Path(load_model("demo").path).read_bytes()
    (tmp_path / "same.gguf").write_bytes(whole)
    context = Context(load_model(tmp_path / "same.gguf"), 128, threads=1)
    context.load(0, saved)
    (tmp_path / "other.gguf").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    refused(saved, "another model file", model=load_model(tmp_path / "other.gguf"))
    key = b"general.name"
    at = whole.index(key) + len(key) + 12  # after type and length
    (tmp_path / "named.gguf").write_bytes(whole[:at] + b"X" + whole[at + 1 :])
    refused(saved, "another model file", model=load_model(tmp_path / "named.gguf"))


@pytest.mark.parametrize("field", ["plugin", "version"])
def test_another_plugin_or_version_of_it(field):
    saved, model = filled().save(0), load_model("demo")
    model.spec = msgspec.structs.replace(model.spec, **{field: "another"})
    refused(saved, r"another plugin, or another version.*another", model=model)


def test_another_version_of_mtpcore(monkeypatch):
    saved = filled().save(0)
    monkeypatch.setattr("mtpcore.runtime.saving.version", lambda: "0.0.1")
    refused(saved, "another version of mtpcore; wanted 0.0.1")


@pytest.mark.parametrize("source", ["/nothing/here", "/", "/dev/zero", "a\0b", b"", b"x" * 99])
def test_what_is_no_state(source):
    refused(source, "path|file|state")


def test_a_file_that_cannot_be_written():
    with pytest.raises(StateError, match="cannot write the file"):
        filled().save(0, "/nothing/here.state")
    with pytest.raises(StateError, match="cannot write the file"):
        filled().save(0, "/")


WINDOWS = (8, 0, 70)


@pytest.mark.parametrize("backend", [CpuBackend, ReferenceBackend])
@pytest.mark.parametrize("n", [5, PAGE, 3 * PAGE + 20])
def test_layers_with_a_window(backend, n):
    """What later rows see is saved, and what a rewind by the spare rows needs; no more."""
    source = trunk(layers=len(WINDOWS), window=WINDOWS, experts=False)
    text = np.random.default_rng(0).integers(0, N_VOCAB, n + 30)
    one, other = (Runner(backend(), *source, n_ctx=512, n_batch=64) for _ in range(2))
    for at in range(0, n, 50):
        one.feed(text[at : min(at + 50, n)])
    for group, copy in zip(one.memory.groups, other.memory.groups, strict=True):
        data = b"".join(group.dump(0))
        copy.load(0, memoryview(data))
        window = getattr(group, "window", n)
        assert len(data) <= 24 + (window + SPARE) * group.store.place_bytes
    assert other.memory.digest(0) == one.memory.digest(0)
    back = max(n - SPARE, 0)
    for again in (n, back):
        for runner in (one, other):
            runner.memory.rewind(0, again)
        rest = text[again : n + 20][:60]
        if again:
            made, wanted = (runner.feed(rest)["logits"] for runner in (other, one))
            assert np.array_equal(made, wanted)
            assert other.memory.digest(0) == one.memory.digest(0)


PROGRAM = """
import sys
import numpy as np
from mtpcore import Batch, Context, load_model
context = Context(load_model("demo"), 128, threads=2)
context.load(0, sys.argv[1])
tokens = np.load(sys.argv[2])
out = context.process(Batch.of(tokens[70:], pos=70, outputs="all"))
np.save(sys.argv[3], out.logits)
print(context.digest(0).hex())
"""


def test_another_process_goes_on(tmp_path):
    context = filled()
    context.save(0, tmp_path / "state")
    np.save(tmp_path / "tokens.npy", TOKENS)
    files = [str(tmp_path / name) for name in ("state", "tokens.npy", "logits.npy")]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *files], capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    assert np.array_equal(np.load(tmp_path / "logits.npy"), logits(context, 0))
    assert done.stdout.strip() == context.digest(0).hex()
