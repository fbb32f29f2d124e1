"""Saved sequences of a Cross: the text goes on, with its drafts, as if nothing had happened."""

import json
import os
import subprocess
import sys

import msgspec
import numpy as np
import pytest
from harness import seer
from harness.damaged_states import VERSION, written
from harness.families import FAMILIES, HYBRID
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

from mtpcore import (
    Batch,
    BatchError,
    Context,
    LinkError,
    Sampling,
    StateError,
    TreeShape,
    link,
    load_model,
)
from mtpcore.boundary.sections import read_sections

SUBJECTS = [*FAMILIES, HYBRID]
SAMPLINGS = (
    Sampling.greedy(),
    Sampling(temperature=1.0, seed=5),
    Sampling(temperature=0.9, repetition_penalty=1.2, frequency_penalty=0.3, top_k=9, seed=2**60),
    Sampling(temperature=1.3, logit_bias={3: 2.0, 5: -float("inf")}, seed=6, stream=2**63),
)


def rounds(cross, seq, k, sampling, n):
    """Draft, verify and accept n times; return the drafts, and what the target chose."""
    found = []
    for _ in range(n):
        draft = cross.draft(seq, k, sampling)
        verdict = cross.verify({seq: draft}, sampling)[seq]
        cross.accept(seq)
        drafted = draft if isinstance(draft, list) else draft.tokens.tolist()
        found.append([drafted, list(verdict.tokens)])
    return found


def begun(subject, prompt=40, seq=0, **options):
    cross = subject.link(**{"threads": 1, "n_seq_max": 3} | options)
    cross.llm.process(Batch.of(subject.text(prompt), seq=seq))
    return cross


@searching(60)
@given(
    subject=st.sampled_from(SUBJECTS),
    kv_dtype=st.sampled_from(["f16", "f32", "q8_0"]),
    sampling=st.sampled_from(SAMPLINGS),
    k=st.sampled_from([0, 1, 3]),
    prompt=st.sampled_from([1, 40, 70]),
    n=st.integers(0, 3),
    sizes=st.fixed_dictionaries(
        {
            "n_ctx": st.sampled_from([120, 256]),
            "n_batch": st.sampled_from([5, 512]),
            "threads": st.sampled_from([1, 2]),
        }
    ),
    seqs=st.tuples(st.integers(0, 2), st.integers(0, 2)),
)
def test_the_text_goes_on(subject, kv_dtype, sampling, k, prompt, n, sizes, seqs):
    """In another slot of a Cross of other sizes: the same tokens, drafts and digests."""
    seq, new = seqs
    cross = begun(subject, prompt, seq, kv_dtype=kv_dtype)
    rounds(cross, seq, k, sampling, n)
    saved = cross.save(seq)
    other = subject.link(**sizes, n_seq_max=3, kv_dtype=kv_dtype)
    settings = other.load(new, saved)
    assert settings == (sampling if n else None)
    assert other.save(new) == saved
    assert other.tokens(new) == cross.tokens(seq)
    assert other.pending(new) == cross.pending(seq)
    wanted = rounds(cross, seq, k, sampling, 3)
    assert rounds(other, new, k, settings or sampling, 3) == wanted
    assert other.digest(new) == cross.digest(seq)
    other.rollback(new, 1)
    cross.rollback(seq, 1)
    assert other.digest(new) == cross.digest(seq)


@pytest.mark.parametrize("sampling", SAMPLINGS[:2])
def test_trees_go_on(sampling):
    crosses = [
        link(
            Context(load_model("demo"), 128, threads=1), tree=TreeShape(depth=3, width=3, n_nodes=7)
        )
        for _ in range(2)
    ]
    cross, other = crosses
    cross.llm.process(Batch.of([5, 6, 7, 8]))
    rounds(cross, 0, 3, sampling, 2)
    assert other.load(0, cross.save(0)) == sampling
    assert rounds(other, 0, 3, sampling, 3) == rounds(cross, 0, 3, sampling, 3)
    assert other.digest(0) == cross.digest(0)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_recurrent_layers_go_on(backend):
    """States and the rows after them are loaded; what was drafted can be taken back as before."""
    for sampling in SAMPLINGS[:2]:
        cross, other = begun(HYBRID, backend=backend), HYBRID.link(n_seq_max=2, backend=backend)
        rounds(cross, 0, 3, sampling, 3)
        assert other.load(1, cross.save(0)) == sampling
        assert other.digest(1) == cross.digest(0)
        n = cross.llm.length(0)
        for seq, one in ((0, cross), (1, other)):
            one.rollback(seq, n - 2)
            one.llm.process(Batch.of([1, 2], seq=seq, pos=n - 2))
        assert rounds(other, 1, 3, sampling, 3) == rounds(cross, 0, 3, sampling, 3)
        assert other.digest(1) == cross.digest(0)


PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
from test_saving import SUBJECTS, rounds
subject = SUBJECTS[int(sys.argv[2])]
cross = subject.link(threads=2)
sampling = cross.load(0, sys.argv[3])
made = rounds(cross, 0, 3, sampling, 4)
print(json.dumps([made, {name: digest.hex() for name, digest in cross.digest(0).items()}]))
"""


@pytest.mark.parametrize("number", range(len(SUBJECTS)), ids=map(str, SUBJECTS))
def test_another_process_goes_on(number, tmp_path):
    subject, path = SUBJECTS[number], tmp_path / "text.state"
    sampling = SAMPLINGS[number % 3]
    cross = begun(subject)
    rounds(cross, 0, 3, sampling, 2)
    assert cross.save(0, path) is None
    folders = os.pathsep.join(part for part in sys.path if part)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, os.path.dirname(__file__), str(number), str(path)],
        env={**os.environ, "PYTHONPATH": folders},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    wanted = rounds(cross, 0, 3, sampling, 4)
    digests = {name: digest.hex() for name, digest in cross.digest(0).items()}
    assert json.loads(done.stdout) == [wanted, digests]


def demo(drafter="auto", **options):
    return link(Context(load_model("demo"), 128, n_seq_max=3, threads=1, **options), drafter)


def test_what_was_not_chosen_yet_is_chosen_later():
    """Logits that wait for a choice are saved: any settings can be used then."""
    cross, other = demo(), demo()
    cross.llm.process(Batch.of([5, 6, 7]))
    assert other.load(1, cross.save(0)) is None
    for sampling in SAMPLINGS:
        other.remove(1)
        other.load(1, cross.save(0))
        cross.fork(0, 2)
        assert other.pending(1, sampling) == cross.pending(2, sampling)
        cross.remove(2)


def test_a_fork_keeps_its_stream_and_prompt_its_length():
    cross, other = demo(), demo()
    cross.llm.process(Batch.of([5, 6, 7]))
    rounds(cross, 0, 3, SAMPLINGS[2], 2)
    cross.fork(0, 1, stream=77)
    other.load(0, cross.save(1))
    assert rounds(other, 0, 3, SAMPLINGS[2], 4) == rounds(cross, 1, 3, SAMPLINGS[2], 4)
    assert other.speculation.states[0].n_prompt == 3


def test_embedding_rows_and_rows_from_outside_are_kept():
    cross, other = demo(), demo()
    width = cross.llm.model.hparams.width
    rows = np.random.default_rng(0).normal(size=(3, width)).astype(np.float32)
    cross.llm.process(Batch.of([5, 6]))
    cross.llm.process(Batch(embeddings=rows, pos=[2, 3, 4]))
    cross.llm.process(Batch.of([7], pos=5))
    cross.pending(0, SAMPLINGS[0])
    other.load(0, cross.save(0))
    assert other.tokens(0) == [5, 6, -1, -1, -1, 7]
    assert rounds(other, 0, 3, SAMPLINGS[0], 3) == rounds(cross, 0, 3, SAMPLINGS[0], 3)


def test_rows_that_are_not_finite_stay_so():
    cross, other = demo(), demo()
    box = next(iter(cross.links.inboxes("draft").values()))
    rows = np.zeros((4, box.width), np.float32)
    rows[2] = np.nan
    cross.llm.process(Batch.of([5, 6, 7, 8]))
    box.put(0, 0, rows)
    other.load(1, cross.save(0))
    assert cross.draft(0, 3, SAMPLINGS[0]) == other.draft(1, 3, SAMPLINGS[0]) == []
    assert (cross.paused, other.paused) == (1, 1)


def test_an_undecided_draft_is_not_saved():
    cross = demo()
    cross.llm.process(Batch.of([5, 6, 7]))
    before = cross.save(0)
    cross.verify({0: [1, 2]}, SAMPLINGS[0])
    with pytest.raises(LinkError, match="undecided"):
        cross.save(0)
    cross.rollback(0, 3)
    cross.remove(0)
    cross.load(0, before)
    assert cross.tokens(0) == [5, 6, 7]


def refused(cross, saved, match):
    before = cross.digest(0), cross.tokens(0), cross.pending(0)
    with pytest.raises(StateError, match=match):
        cross.load(0, saved)
    assert (cross.digest(0), cross.tokens(0), cross.pending(0)) == before
    cross.llm.process(Batch.of([5, 6, 7]))
    assert rounds(cross, 0, 2, SAMPLINGS[0], 1)


def test_what_a_state_is_not_of():
    cross = demo()
    cross.llm.process(Batch.of([5, 6, 7]))
    rounds(cross, 0, 3, SAMPLINGS[1], 2)
    saved = cross.save(0)
    refused(demo([]), saved, "the state is of other roles; wanted llm; got llm, draft")
    refused(demo(backend="reference"), saved, "role llm: the state is of another backend")
    refused(demo(kv_dtype="q8_0"), saved, "another type of keys and values")
    refused(FAMILIES[0].link(n_seq_max=3), saved, "another model file")
    alone = Context(load_model("demo"), 128, threads=1)
    alone.process(Batch.of([5, 6, 7]))
    refused(demo(), alone.save(0), "the state is of a Context")
    refused(demo(), saved[:-9], "cut short")
    with pytest.raises(BatchError, match="empty sequence"):
        cross.load(0, saved)


def test_a_load_that_is_cut_off_changes_nothing(monkeypatch):
    """Whatever raises half-way: memory, waiting rows and text are those of an empty sequence."""
    cross, other = demo(), demo()
    cross.llm.process(Batch.of([5, 6, 7]))
    rounds(cross, 0, 3, SAMPLINGS[1], 2)
    saved, empty = cross.save(0), other.digest(0)
    box = type(next(iter(other.links.boxes)))
    whole = box.load

    def planted(self, *arguments):
        whole(self, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(box, "load", planted)
        with pytest.raises(KeyboardInterrupt):
            other.load(0, saved)
    assert (other.digest(0), other.tokens(0), other.pending(0)) == (empty, [], None)
    assert other.load(0, saved) == SAMPLINGS[1]
    assert other.save(0) == saved


def forge(saved, name, **changes):
    """Return a state with another value of a part, and right checksums."""
    parts = {one: bytes(part) for one, part in read_sections(saved, VERSION).items()}
    if changes:
        value = msgspec.msgpack.decode(parts[name]) | changes
        parts[name] = msgspec.msgpack.encode(value)
    else:
        del parts[name]
    return written(parts)


N = 9  # tokens of the text below


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({}, "text: a part of the state is missing"),
        ({"history": bytes(4 * N - 4)}, "tokens of another text"),
        ({"history": bytes(4 * N + 4)}, "tokens of another text"),
        ({"history": bytes(4 * N - 1)}, "tokens of another text"),
        ({"history": b"\xff\xff\xff\x7f" * N}, "no tokens of the model"),
        ({"history": b"\xfe\xff\xff\xff" * N}, "no tokens of the model"),
        ({"history": b"\xff\xff\xff\xff" * N}, "no tokens of the model"),
        ({"n_known": N + 1}, "more than there are"),
        ({"n_prompt": N + 1}, "more than there are"),
        ({"n_prompt": -1}, "not what is saved there"),
        ({"n_prompt": 2**63}, "more than there are"),
        ({"pending": 2**40}, "no tokens of the model"),
        ({"pending": True}, "not what is saved there"),
        ({"pending": None, "last_logits": bytes(8)}, "no logits of the model"),
        ({"last_logits": bytes(8)}, "no logits of the model"),
        ({"sampling": {"temperature": -1.0}}, "not what is saved there"),
        ({"sampling": 7}, "not what is saved there"),
        ({"stream": -1}, "not what is saved there"),
        ({"more": 1}, "not what is saved there"),
    ],
)
def test_a_forged_text_is_refused(changes, match):
    refused(demo(), forge(text_of_nine(), "text", **changes), match)


def text_of_nine():
    cross = demo()
    cross.llm.process(Batch.of(range(1, N + 1)))
    cross.pending(0, SAMPLINGS[1])
    return cross.save(0)


@pytest.mark.parametrize(
    ("name", "changes", "match"),
    [
        ("llm: sequence", {"length": N + 1}, "llm: sequence: lengths that differ"),
        ("draft: sequence", {"length": 2**63}, "draft: sequence: lengths that differ"),
        ("draft: sequence", {"length": -1}, "lengths that differ"),
        ("draft: sequence", {"length": None}, "not what is saved there"),
        ("llm: sequence", {"positions": bytes(4 * N + 4)}, "positions of other rows"),
        ("llm: sequence", {"positions": bytes(3)}, "positions of other rows"),
        ("llm: sequence", {"positions": b"\xff\xff\xff\x7f"}, "positions outside the context"),
        ("llm: sequence", {"positions": b"\xff\xff\xff\xff"}, "positions outside the context"),
        ("rows for draft.hidden", {}, "rows for draft.hidden: a part of the state is missing"),
        ("llm: memory 0", {}, "llm: memory 0: a part of the state is missing"),
    ],
)
def test_a_forged_part_is_refused(name, changes, match):
    refused(demo(), forge(text_of_nine(), name, **changes), match)


@pytest.mark.parametrize(
    ("name", "bounds", "match"),
    [
        ("llm: memory 0", (0, 0, N + 1), "rows of another size"),
        ("llm: memory 0", (1, 0, N), "impossible bounds"),
        ("llm: memory 0", (0, 1, N), "impossible bounds"),
        ("llm: memory 0", (N, N, N), "impossible bounds"),
        ("llm: memory 0", (0, 0, 2**40), "longer than the context"),
        ("llm: memory 0", (2**63, 2**63, 2**63 + N), "longer than the context"),
        ("rows for draft.hidden", (1, N), "rows of another number"),
        ("rows for draft.hidden", (N, 0), "rows of another number"),
        ("rows for draft.hidden", (2**40, 2**40 + N), "rows of another number"),
        ("rows for draft.hidden", (120, 120 + N), "rows of another number"),
    ],
)
def test_forged_bounds_are_refused(name, bounds, match):
    saved = text_of_nine()
    parts = {one: bytes(part) for one, part in read_sections(saved, VERSION).items()}
    head = b"".join(one.to_bytes(8, "little") for one in bounds)
    parts[name] = head + parts[name][len(head) :]
    refused(demo(), written(parts), match)


def test_a_further_part_takes_back_what_was_loaded(tmp_path):
    """The last of all checks: positions of an image, among the rest, are forgotten again."""
    model = seer.load(tmp_path, "space", 3)
    one, other = (Context(model, 64, kv_dtype="f32", threads=1) for _ in range(2))
    rows = np.ones((6, seer.WIDTH), np.float32)
    places = np.array([[0, y, x, 0] for y in range(2) for x in range(3)])
    one.process(Batch(embeddings=rows, pos=places))
    saved, empty = one.save(0), other.digest(0)
    parts = {name: bytes(part) for name, part in read_sections(saved, VERSION).items()}
    with pytest.raises(StateError, match="more: the state has a further part"):
        other.load(0, written(parts | {"more": b"x"}))
    assert (other.length(0), other.next_position(0), other.digest(0)) == (0, 0, empty)
    other.process(Batch.of([1, 2, 3, 4, 5, 6]))
    assert other.next_position(0) == 6
    other.remove(0)
    other.load(0, saved)
    assert (other.length(0), other.next_position(0)) == (6, 3)
