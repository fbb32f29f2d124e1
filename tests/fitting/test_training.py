"""Heads that are fitted, on the demo model without one: seconds, and a few thousand tokens."""

import shutil
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
from harness.extras import require

import mtpcore
from mtpcore.discovery.loading import find_model
from mtpcore.errors import ModelFileError
from mtpcore.fitting import fit, lessons
from mtpcore.fitting.fit import fit_head
from mtpcore.fitting.measuring import MeasuredHead
from mtpcore.fitting.pace import Pace
from mtpcore.fitting.settings import Settings
from mtpcore.sampling import Sampling
from mtpcore.testing import Batching, Subject, Texts, check_rows, check_texts

require("jax", extra="fit")

ROOM = Path(mtpcore.__file__).parent
TEXTS = [ROOM / "errors.py", ROOM / "cross", ROOM / "runtime"]
SHAPES = ["eagle3", "peagle"]
SETTINGS = Settings(
    tokens=10_000, vocabulary=600, window=128, epochs=1, batch=4, prompts=8, continuation=24
)


@contextmanager
def watch(title):
    yield lambda done, total: None


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("fit")
    shutil.copy(find_model("demo:eagle3"), made / "model.gguf")
    return made


def run(folder, out, settings=SETTINGS, work="work", **options):
    return fit_head(
        folder / "model.gguf", TEXTS, folder / out, settings, watch, work=folder / work,
        threads=1, **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def fitted(folder):
    return run(folder, "model-draft.gguf")


@pytest.fixture(scope="module", params=SHAPES)
def head(request, fitted, folder):
    """Return the name of a drafter and the path of the head that was fitted for it."""
    return request.param, folder / "work" / f"{request.param}.gguf"


def test_heads_draft_more_often_than_chance(fitted):
    assert [*fitted.measured] == SHAPES
    for greedy, sampled in fitted.measured.values():
        assert greedy.acceptance[0] > 0.2
        assert sampled.acceptance[0] > 0.2
    assert fitted.n_vocabulary == 600  # so chance is less than a hundredth


def test_one_lies_where_link_finds_it(fitted, folder):
    tried = folder / "work" / f"{fitted.drafter}.gguf"
    assert fitted.path.read_bytes() == tried.read_bytes()
    with mtpcore.load_model(folder / "model.gguf") as model:
        assert [one.path for one in model.sidecars if one.used] == [fitted.path]


@pytest.mark.parametrize("kept", SHAPES)
def test_it_is_the_fastest_one(fitted, folder, kept, monkeypatch):
    """By the product of both speeds: neither the first one nor the best of one temperature."""

    def measure_heads(target, heads, *args, **options):
        speeds = {name: (11.0, 11.0) if name == kept else (12.0, 9.0) for name in heads}
        return {
            name: [MeasuredHead(i, [0.5], 10.0, rate, rate) for i, rate in enumerate(rates)]
            for name, rates in speeds.items()
        }

    monkeypatch.setattr(fit, "measure_heads", measure_heads)
    made = run(folder, "fastest.gguf")
    assert made.drafter == kept
    with mtpcore.load_model(made.path, sidecars=False) as model:
        assert [spec.name for spec in model.drafters] == [kept]


@pytest.fixture(scope="module")
def subject(head, folder):
    return Subject(head[0], folder / "model.gguf", head[1])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_stay_the_same(subject, temperature):
    sampling = Sampling(temperature=temperature, seed=3)
    assert check_texts(subject, Texts(sampling=sampling)) > 0.05


def test_rows_may_come_in_any_batches(subject):
    check_rows(subject, Batching(chunk=3, n_batch=5))


def test_the_same_seed_gives_the_same_head_alone_or_beside_others(head, folder):
    name, path = head
    again = run(folder, "again.gguf", work="other", shapes=[name])
    assert again.path.read_bytes() == path.read_bytes()


def test_another_seed_gives_another_head(fitted, folder):
    settings = msgspec.structs.replace(SETTINGS, seed=1)
    other = run(folder, "other.gguf", settings, "seeded", shapes=["eagle3"])
    assert other.path.read_bytes() != (folder / "work" / "eagle3.gguf").read_bytes()


def test_minutes_decide_only_how_many_tokens_are_read(fitted, folder, monkeypatch):
    paces, before = [], (folder / "work" / "peagle.gguf").read_bytes()

    def measure_pace(*args):
        paces.append(measured(*args))
        return Pace(reading=2e-3, writing=4e-3, training=3e-3)

    measured = fit._measure_pace
    monkeypatch.setattr(fit, "_measure_pace", measure_pace)
    settings = msgspec.structs.replace(SETTINGS, tokens=1)
    minutes = SETTINGS.tokens * 6e-3 / 60 / 0.9 + 1e-9
    timed = run(folder, "timed.gguf", settings, minutes=minutes, shapes=["peagle"])
    assert timed.settings == SETTINGS
    assert timed.path.read_bytes() == before
    assert min(msgspec.structs.astuple(paces[0])) > 0


def test_an_interrupted_run_goes_on(fitted, folder, monkeypatch):
    from mtpcore.fitting import training

    monkeypatch.setattr(training, "_KEPT_EVERY", 5)
    steps = []

    @contextmanager
    def interrupted(title):
        def report(done, total):
            if title == "training eagle3":
                steps.append(done)
                if len(steps) == 13:
                    raise KeyboardInterrupt

        yield report

    arguments = folder / "model.gguf", TEXTS, folder / "on.gguf", SETTINGS
    options = {"work": folder / "interrupted", "threads": 1, "shapes": ["eagle3"]}
    with pytest.raises(KeyboardInterrupt):
        fit_head(*arguments, interrupted, **options)
    assert not (folder / "on.gguf").exists()
    before = len(steps)
    fit_head(*arguments, interrupted, **options)
    assert steps[before] == steps[10], "it goes on after the last state that was kept"
    uninterrupted = folder / "work" / "eagle3.gguf"
    assert (folder / "on.gguf").read_bytes() == uninterrupted.read_bytes()


def test_held_out_files_are_never_read(folder, monkeypatch):
    opened, encode_file = [], lessons.encode_file

    def encode(tokenizer, path, most):
        opened.append(path)
        return encode_file(tokenizer, path, most)

    monkeypatch.setattr(lessons, "encode_file", encode)
    monkeypatch.setattr(fit, "encode_file", encode)
    sides = []

    def split(paths, seed):
        sides.append(split_files(paths, seed))
        return sides[0]

    split_files = fit.split_files
    monkeypatch.setattr(fit, "split_files", split)
    monkeypatch.setattr(fit, "_open_held_out", lambda target, files, s: iter(()))
    unread = run(folder, "unread.gguf")
    assert opened
    assert sides[0].held_out
    assert not {*opened} & {*sides[0].held_out}
    assert unread.measured == {name: [] for name in SHAPES}
    assert unread.drafter == SHAPES[0]


def test_it_goes_on_from_a_head(head, folder):
    name, path = head
    none = msgspec.structs.replace(SETTINGS, epochs=0)
    same = run(folder, "same.gguf", none, "further", start=path)
    assert same.drafter == name
    with (
        mtpcore.load_model(path, sidecars=False) as one,
        mtpcore.load_model(same.path, sidecars=False) as other,
    ):
        for tensor_name, tensor in one.tensors.items():  # Q8_0 once more; taps scaled and back
            a, b = tensor.array(), other.tensors[tensor_name].array()
            assert np.abs(a - b).max() <= 0.02 * np.abs(a).max(), tensor_name


@pytest.mark.parametrize("key", ["width", "other"])
def test_a_head_of_another_shape_is_refused(folder, key):
    start = "demo" if key == "other" else "demo:eagle3-draft"
    with pytest.raises(ModelFileError, match="not of the shape"):
        run(folder, "refused.gguf", start=start)
    assert not (folder / "refused.gguf").exists()
