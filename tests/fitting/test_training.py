"""A head that is fitted, on the demo model without one: seconds, and a few thousand tokens."""

import shutil
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest

import mtpcore
from mtpcore.errors import ModelFileError
from mtpcore.fitting import fit
from mtpcore.fitting.fit import fit_head
from mtpcore.fitting.pace import Pace
from mtpcore.fitting.settings import Settings
from mtpcore.sampling import Sampling
from mtpcore.testing import Batching, Subject, Texts, check_drafts, check_rows, check_texts

pytest.importorskip("jax")

ROOM = Path(mtpcore.__file__).parent
TEXTS = [ROOM / "errors.py", ROOM / "cross", ROOM / "runtime"]
SETTINGS = Settings(
    tokens=10_000, vocabulary=600, window=128, epochs=1, batch=4, prompts=8, continuation=24
)


@contextmanager
def watch(title):
    yield lambda done, total: None


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("fit")
    shutil.copy(ROOM / "data" / "demo-eagle3.gguf", made / "model.gguf")
    return made


def run(folder, out, settings=SETTINGS, work="work", **options):
    return fit_head(
        folder / "model.gguf", TEXTS, folder / out, settings, watch, work=folder / work,
        threads=1, **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def fitted(folder):
    return run(folder, "model-draft.gguf")


def test_it_drafts_more_often_than_chance(fitted):
    greedy, sampled = fitted.measured
    assert greedy.acceptance[0] > 0.2
    assert sampled.acceptance[0] > 0.2
    assert fitted.n_vocabulary == 600  # so chance is less than a hundredth


def test_it_lies_where_link_finds_it(fitted, folder):
    with mtpcore.load_model(folder / "model.gguf") as model:
        used = [one.path for one in model.sidecars if one.used]
        assert used == [fitted.path]


@pytest.fixture(scope="module")
def subject(fitted, folder):
    return Subject("fitted", folder / "model.gguf", fitted.path)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_stay_the_same(subject, temperature):
    sampling = Sampling(temperature=temperature, seed=3)
    assert check_texts(subject, Texts(sampling=sampling)) > 0.05


def test_rows_may_come_in_any_batches(subject):
    check_rows(subject, Batching(chunk=3, n_batch=5))


def test_the_runtime_computes_what_was_trained(subject):
    """The graph in JAX, by which the head was trained, scores each draft of the runtime best."""
    from mtpcore_eagle3 import fitting

    target, head = subject.model, subject.draft_model
    weights = {name: one.array() for name, one in head.tensors.items()}
    vocabulary = weights.pop("d2t").astype(int)
    table = target.tensors["token_embd.weight"].array()
    n_most, k = 16, 3

    def scores(tokens, rows, drafts):
        n = len(tokens) - 1
        following = np.resize([*tokens[1:], *drafts], n_most + k)
        taps = np.zeros((1, n_most + k, 3 * table.shape[1]), np.float32)
        taps[0, :n] = np.concatenate([rows[tap] for tap in fitting.taps(target)], axis=1)
        made = fitting.draft(weights, table[following][None], taps, len(drafts), target)
        logits = np.full((len(drafts), target.hparams.n_vocab), -np.inf)
        for step, row in enumerate(made):
            logits[step, vocabulary] = row[0, n - 1] @ weights["output.weight"].T
        return logits

    assert check_drafts(subject, scores, k=k, n_tokens=n_most) >= n_most


def test_the_same_seed_gives_the_same_head(fitted, folder):
    again = run(folder, "again.gguf", work="other")
    assert again.path.read_bytes() == fitted.path.read_bytes()
    other = run(folder, "other.gguf", msgspec.structs.replace(SETTINGS, seed=1))
    assert other.path.read_bytes() != fitted.path.read_bytes()


def test_minutes_decide_only_how_many_tokens_are_read(fitted, folder, monkeypatch):
    paces = []

    def measure_pace(*args):
        paces.append(measured(*args))
        return Pace(reading=2e-3, writing=4e-3, training=3e-3)

    measured = fit._measure_pace
    monkeypatch.setattr(fit, "_measure_pace", measure_pace)
    settings = msgspec.structs.replace(SETTINGS, tokens=1)
    timed = run(folder, "timed.gguf", settings, minutes=SETTINGS.tokens * 6e-3 / 60 / 0.9 + 1e-9)
    assert timed.settings == SETTINGS
    assert timed.path.read_bytes() == fitted.path.read_bytes()
    assert min(msgspec.structs.astuple(paces[0])) > 0


def test_an_interrupted_run_goes_on(fitted, folder, monkeypatch):
    from mtpcore.fitting import training

    monkeypatch.setattr(training, "_KEPT_EVERY", 5)
    steps = []

    @contextmanager
    def interrupted(title):
        def report(done, total):
            if title == "training":
                steps.append(done)
                if len(steps) == 13:
                    raise KeyboardInterrupt

        yield report

    arguments = folder / "model.gguf", TEXTS, folder / "on.gguf", SETTINGS
    options = {"work": folder / "interrupted", "threads": 1}
    with pytest.raises(KeyboardInterrupt):
        fit_head(*arguments, interrupted, **options)
    assert not (folder / "on.gguf").exists()
    before = len(steps)
    fit_head(*arguments, interrupted, **options)
    assert steps[before] == steps[10], "it goes on after the last state that was kept"
    assert (folder / "on.gguf").read_bytes() == fitted.path.read_bytes()


def test_held_out_files_are_never_read(folder, monkeypatch):
    opened, encode_file = [], fit.encode_file

    def encode(tokenizer, path, most):
        opened.append(path)
        return encode_file(tokenizer, path, most)

    monkeypatch.setattr(fit, "encode_file", encode)
    monkeypatch.setattr(fit, "measure_head", lambda *args, **options: [])
    sides = []

    def split(paths, seed):
        sides.append(split_files(paths, seed))
        return sides[0]

    split_files = fit.split_files
    monkeypatch.setattr(fit, "split_files", split)
    monkeypatch.setattr(fit, "_open_held_out", lambda target, files, s: iter(()))
    run(folder, "unread.gguf")
    assert opened
    assert sides[0].held_out
    assert not {*opened} & {*sides[0].held_out}


def test_it_goes_on_from_a_head(fitted, folder):
    short = msgspec.structs.replace(SETTINGS, epochs=1, rate=0.0)
    same = run(folder, "same.gguf", short, start=fitted.path)
    with (
        mtpcore.load_model(fitted.path, sidecars=False) as one,
        mtpcore.load_model(same.path, sidecars=False) as other,
    ):
        for name, tensor in one.tensors.items():  # Q8_0 once more, and taps scaled and back
            a, b = tensor.array(), other.tensors[name].array()
            assert np.abs(a - b).max() <= 0.02 * np.abs(a).max(), name


@pytest.mark.parametrize("key", ["width", "other"])
def test_a_head_of_another_shape_is_refused(folder, key):
    start = "demo" if key == "other" else ROOM / "data" / "demo-eagle3-draft.gguf"
    with pytest.raises(ModelFileError, match="not of the shape"):
        run(folder, "refused.gguf", start=start)
    assert not (folder / "refused.gguf").exists()
