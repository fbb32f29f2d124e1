"""A small random Qwen3-TTS against what its own package makes of it, from the checkpoint on."""

import numpy as np
import pytest
from harness import qwen_tts
from harness.fixtures import DATA
from harness.published import tokenizer, write_checkpoint
from harness.qwen_tts import N_CODEBOOKS, N_CODES, SPEECHES
from harness.speech_prompts import rows_of

from mtpcore import (
    Batch,
    BatchError,
    Codes,
    Context,
    Frames,
    ModelFileError,
    Sampling,
    link,
    load_model,
)
from mtpcore.conversion import convert
from mtpcore.testing import check_graphs
from mtpcore.testing.subject import Subject

backends = pytest.mark.parametrize("backend", ["cpu", "reference"])
speeches = pytest.mark.parametrize("i", range(len(SPEECHES)), ids=list(SPEECHES))
CLOSE = 2e-4


@pytest.fixture(scope="module")
def refs():
    with np.load(DATA / "qwen_tts" / "refs.npz") as file:
        return {name: file[name] for name in file}


def write(folder, tensors, outtype="f32", depth=qwen_tts.DEPTH):
    config = qwen_tts.configuration(depth)
    write_checkpoint(folder / "hf", config, tensors, tokenizer(qwen_tts.N_TEXT))
    left_out = convert(folder / "hf", folder / "model.gguf", outtype=outtype)
    return folder / "model.gguf", left_out


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("qwen_tts"), qwen_tts.weights())[0]


def open_cross(path, backend="cpu", **settings):
    sizes = {"kv_dtype": "f32", "threads": 1, "backend": backend, **settings}
    return link(Context(load_model(path), 64, **sizes))


@backends
@speeches
def test_every_frame(path, refs, i, backend):
    """States, first codes, and all codes after them, whatever is asked for."""
    prompt, beside = rows_of([*SPEECHES.values()][i])
    cross = open_cross(path, backend)
    out = cross.llm.process(prompt.batch())
    frames = refs[f"frames{i}"]
    for n, first in enumerate(refs[f"first{i}"]):
        assert np.abs(out.logits[0] - first).max() < CLOSE
        if n == len(frames):
            break
        assert np.abs(out.tap("hidden")[-1] - refs[f"hidden{i}"][n]).max() < CLOSE
        assert np.array_equal(cross.frame([0])[0], frames[n])
        token = beside[n] if n < len(beside) else -1
        batch = Batch([token], codes=frames[n : n + 1], pos=cross.llm.length(0))
        out = cross.llm.process(batch)


@backends
@speeches
def test_what_generate_makes(path, refs, i, backend):
    prompt, beside = rows_of([*SPEECHES.values()][i])
    frames = Frames(open_cross(path, backend), sampling=Sampling.greedy())
    request = frames.add(prompt, beside=beside, max_frames=8)
    while frames.active:
        frames.step()
    wanted = refs[f"frames{i}"]
    assert np.array_equal(request.frames, wanted)
    assert request.finish_reason == ("end" if len(wanted) < 8 else "length")


def test_a_text_ends(refs):
    assert len({len(refs[f"frames{i}"]) for i in range(len(SPEECHES))}) == 2


@backends
def test_logits_of_the_code_predictor(path, refs, backend):
    """A whole frame in one pass: each position has a table and a matrix of its own."""
    context = Context(
        load_model(path), 8, graph_type="depth", kv_dtype="f32", threads=1, backend=backend
    )
    for frame, hidden, logits in zip(refs["frames0"], refs["hidden0"], refs["depth0"], strict=True):
        rows = np.zeros((N_CODEBOOKS, qwen_tts.WIDTH), np.float32)
        rows[0] = hidden
        batch = Batch([-1, *frame[:-1]], embeddings=rows, outputs=[False, True, True, True, True])
        assert np.abs(context.process(batch).logits - logits).max() < CLOSE
        context.remove(0)


@backends
def test_a_code_predictor_as_wide_as_the_talker(tmp_path, refs, backend):
    weights = qwen_tts.weights(depth=qwen_tts.WIDTH)
    file, _ = write(tmp_path, weights, depth=qwen_tts.WIDTH)
    with load_model(file) as model:
        assert "depth.input.weight" not in model.tensors
    prompt, beside = rows_of(next(iter(SPEECHES.values())))
    frames = Frames(open_cross(file, backend), sampling=Sampling.greedy())
    made = list(frames.generate(prompt, beside=beside, max_frames=8))
    assert np.array_equal(made, refs["wide"])


def test_marks_are_in_the_file(path):
    with load_model(path) as model:
        for name in ("speaker", "language"):
            names, ids = (model.metadata[f"qwen3tts.{name}.{what}"] for what in ("names", "ids"))
            known = {"speaker": qwen_tts.SPEAKERS, "language": qwen_tts.LANGUAGES}[name]
            assert dict(zip(names, map(int, ids), strict=True)) == known
        for name, wanted in qwen_tts.MARKS.items():
            if name != "codec_eos_token_id":
                assert model.metadata[f"qwen3tts.{name.replace('_', '.', 1)}"] == wanted
        assert model.codebooks.end == qwen_tts.MARKS["codec_eos_token_id"]


def test_marks_are_never_chosen(path):
    """Nor does a mark's code pass where a code of another codebook is wanted."""
    frames = Frames(open_cross(path, n_seq_max=4))
    hot = [Sampling(temperature=50.0, seed=seed) for seed in range(4)]
    requests = [frames.add([3, 4], max_frames=20, sampling=one) for one in hot]
    while frames.active:
        frames.step()
    chosen = np.concatenate([request.frames for request in requests])
    assert (chosen < N_CODES).all()
    assert len(np.unique(chosen[:, 0])) > 5


def test_the_speaker_encoder_is_left_out_and_missing_codes_are_an_error(tmp_path):
    w = qwen_tts.weights()
    more = {"speaker_encoder.fc.weight": np.zeros((2, 2), "f4")}
    assert write(tmp_path / "a", {**w, **more})[1] == {
        "speaker_encoder.fc.weight": "of no use: speaker_encoder.*"
    }
    del w["talker.code_predictor.lm_head.3.weight"]
    with pytest.raises(ModelFileError, match=r"lm_head\.3\.weight"):
        write(tmp_path / "b", w)


def test_tables_that_do_not_fit_the_configuration_are_refused(tmp_path):
    """One row more for each other codebook: no longer as many as the output has logits."""
    w, name = qwen_tts.weights(), "talker.model.codec_embedding.weight"
    w[name] = np.concatenate([w[name], np.zeros((N_CODEBOOKS - 1, qwen_tts.WIDTH), "f4")])
    with pytest.raises(ModelFileError, match="no model: one logit a token"):
        write(tmp_path, w)


def test_rows_with_codes_are_not_processed_again_as_their_text(path):
    cross = open_cross(path)
    codes = [[1, 2, 3, 4, 5]] * 6
    cross.llm.process(Batch([3, 4, 5, 6, 7, 8], codes=codes, pos=range(6)))
    before = cross.digest(0)
    with pytest.raises(BatchError, match="codes cannot be processed again"):
        cross.shift(0, keep=2, drop=2)
    assert cross.digest(0) == before


@pytest.mark.parametrize("outtype", ["f32", "f16", "q8_0"])
def test_graphs_have_the_bits_of_their_definition(path, tmp_path, outtype):
    file = write(tmp_path, qwen_tts.weights(), outtype)[0] if outtype != "f32" else path
    assert check_graphs(Subject("qwen3-tts", str(file))) > 0


def test_ids_of_no_part(path):
    """First codes have more ids than others."""
    cross = open_cross(path)
    depth, last = cross.contexts["depth"], qwen_tts.N_FIRST - 1
    rows = np.zeros((1, qwen_tts.WIDTH), np.float32)
    depth.process(Batch([-1], embeddings=rows, outputs="none"))
    with pytest.raises(BatchError, match=f"no such token; wanted 0..{last}"):
        depth.process(Batch([last + 1], pos=1))
    depth.process(Batch([last], pos=1))
    with pytest.raises(BatchError, match=f"no such token; wanted 0..{N_CODES - 1}"):
        depth.process(Batch([N_CODES], pos=2))
    with pytest.raises(BatchError, match=f"codebook 1: no such code; wanted -1..{N_CODES - 1}"):
        cross.llm.process(Batch(codes=[[0, N_CODES, 0, 0, 0]]))
    with pytest.raises(BatchError, match=f"codebook 0: no such code; wanted -1..{last}"):
        cross.llm.process(Batch(codes=[[last + 1, 0, 0, 0, 0]]))
    cross.llm.process(Batch(codes=[[last, 0, 0, 0, 0]]))


@pytest.mark.parametrize(("threads", "n_batch"), [(1, 64), (2, 3), (3, 7)])
def test_speeches_together_are_speeches_alone(path, threads, n_batch):
    """With all ways to ask, sampled: none depends on the others, nor on threads and batches."""
    settings = [Sampling(temperature=0.9, top_k=6, seed=seed) for seed in range(len(SPEECHES))]
    asked = [rows_of(speech) for speech in SPEECHES.values()]
    alone = Frames(open_cross(path))
    wanted = [
        list(alone.generate(prompt, beside=beside, max_frames=6, sampling=one))
        for (prompt, beside), one in zip(asked, settings, strict=True)
    ]
    cross = open_cross(path, n_seq_max=4, threads=threads, n_batch=n_batch)
    together = Frames(cross)
    requests = [
        together.add(prompt, beside=beside, max_frames=6, sampling=one)
        for (prompt, beside), one in zip(asked, settings, strict=True)
    ]
    while together.active:
        together.step()
    for request, frames in zip(requests, wanted, strict=True):
        assert np.array_equal(request.frames, frames)
    assert any(len(frames) > 3 for frames in wanted)


def test_text_beside_frames_counts(path):
    """Another token beside a frame is another speech; where none is left, the padding is."""
    prompt, beside = rows_of(next(iter(SPEECHES.values())))
    frames = Frames(open_cross(path), sampling=Sampling.greedy())
    made = [
        np.array(list(frames.generate(prompt, beside=text, max_frames=6)))
        for text in (beside, [*beside[:2], 15, *beside[3:]], [*beside, qwen_tts.TTS_PAD])
    ]
    assert np.array_equal(made[0], made[2])
    assert np.array_equal(made[0][:3], made[1][:3])
    assert not np.array_equal(made[0], made[1])
    for text in ([qwen_tts.N_TEXT + qwen_tts.N_FIRST], [-1], [[1]], ["a"]):
        with pytest.raises(BatchError):
            frames.add(prompt, beside=text)
    for text in ([1], [[1], [2]], [1, -2], ["a", "b"]):
        with pytest.raises(BatchError):
            Codes(np.zeros((2, N_CODEBOOKS), np.int32), tokens=text)
