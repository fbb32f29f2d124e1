"""Frames of codes on a Cross: what chooses them, what they depend on, and what is left of them."""

import numpy as np
import pytest
from harness import csm, qwen_tts
from harness.published import tokenizer, write_checkpoint
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

from mtpcore import (
    Batch,
    BatchError,
    Context,
    Cross,
    GraphError,
    Link,
    LinkError,
    Sampling,
    SamplingError,
    link,
    load_model,
)
from mtpcore._ext._sampling import Sampler, Scratch
from mtpcore.conversion import convert

SETTINGS = [
    Sampling(temperature=0.9, top_k=5, seed=3),
    Sampling(temperature=1.3, seed=4, stream=2),
    Sampling(temperature=0.7, top_p=0.8, min_p=0.02, seed=5),
    Sampling.greedy(),
]
N = csm.N_CODEBOOKS


both = pytest.mark.parametrize("model", [csm, qwen_tts], indirect=True, ids=["csm", "qwen_tts"])


@pytest.fixture(scope="module")
def model(tmp_path_factory, request):
    """A model of a family, CSM by default; both write frames of 5 codes of 19, after text of 24."""
    family = getattr(request, "param", csm)
    folder = tmp_path_factory.mktemp("codebooks")
    config, weights = family.configuration(), family.weights()
    write_checkpoint(folder / "hf", config, weights, tokenizer(csm.N_TEXT))
    convert(folder / "hf", folder / "model.gguf", outtype="f32")
    with load_model(folder / "model.gguf") as model:
        yield model


def allowed(model, logits):
    """Return logits of first codes without those of marks."""
    logits, books = np.array(logits), model.codebooks
    is_mark = np.arange(len(logits)) >= books.size
    is_mark[books.end] = False
    logits[is_mark] = -np.inf
    return logits


def open_cross(model, n_seq_max=1, **settings):
    return link(Context(model, 64, n_seq_max=n_seq_max, **{"threads": 1, **settings}))


@both
def test_the_link_that_is_declared(model):
    """Of the two graphs that read embeddings only one is fed."""
    found = [(one.src, one.tap, one.dst, one.slot) for one in open_cross(model).links]
    assert found == [("llm", "hidden", "depth", "embeddings")]


def read(cross, codes, seq=0):
    pos = cross.llm.length(seq)
    return cross.llm.process(Batch(codes=np.atleast_2d(codes), seq=seq, pos=pos))


def speak(cross, settings, n, seq=0, text=None):
    """Return n frames after a text, one after the other."""
    if text is not None:
        cross.llm.process(Batch.of(text, seq=seq))
    frames = []
    for _ in range(n):
        frames.append(cross.frame([seq], settings)[seq])
        read(cross, frames[-1], seq)
    return np.array(frames)


@both
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_one_call_is_so_many_calls_of_process(model, settings, backend):
    """Code i of the frame at place n: from the depth decoder's logits, noise n * count + i."""
    cross = open_cross(model, backend=backend, kv_dtype="f32")
    depth = Context(model, N, graph_type="depth", backend=backend, kv_dtype="f32", threads=1)
    sampler, none = (
        Sampler(settings, Scratch(max(csm.N_TEXT, model.codebooks.n_first))),
        np.zeros(0, np.int32),
    )
    out = cross.llm.process(Batch.of(csm.text()))
    for n in range(len(csm.text()), len(csm.text()) + 4):
        codes = [sampler.choose(allowed(model, out.logits[0]), none, 0, n * N)]
        hidden = out.tap("hidden")[-1:]
        depth.process(Batch(embeddings=hidden, outputs="none"))
        for i in range(1, N):
            logits = depth.process(Batch([codes[-1]], pos=i)).logits[0]
            codes.append(sampler.choose(np.array(logits), none, 0, n * N + i))
        depth.remove(0)
        assert cross.frame([0], settings)[0].tolist() == codes
        out = read(cross, codes)


@both
def test_backends_agree(model):
    for settings in SETTINGS:
        found = [
            speak(open_cross(model, backend=backend), settings, 5, text=csm.text())
            for backend in ("cpu", "reference")
        ]
        assert np.array_equal(*found)
        assert len(np.unique(found[0], axis=0)) > 1


@both
@searching(10)
@given(
    st.lists(st.integers(1, 12), min_size=2, max_size=4),
    st.integers(1, 3),
    st.sampled_from([1, 2, 3]),
)
def test_frames_do_not_depend_on_their_company(model, lengths, threads, n_batch):
    """Sequences together, in any batches, have the frames that each has alone."""
    settings = {seq: SETTINGS[seq % len(SETTINGS)] for seq in range(len(lengths))}
    alone = [
        speak(open_cross(model), settings[seq], 3, text=csm.text(n))
        for seq, n in enumerate(lengths)
    ]
    llm = Context(model, 64, n_seq_max=len(lengths), threads=threads, n_batch=n_batch)
    sizes = {"n_seq_max": len(lengths), "threads": threads, "n_batch": n_batch + 1}
    cross = Cross(llm=llm, depth=Context(model, N, graph_type="depth", **sizes))
    for seq, n in enumerate(lengths):
        llm.process(Batch.of(csm.text(n), seq=seq))
    for number in range(3):
        frames = cross.frame(list(settings), settings)
        for seq, frame in frames.items():
            assert np.array_equal(frame, alone[seq][number])
        llm.process(
            Batch(
                codes=np.stack(list(frames.values())),
                seq=list(frames),
                pos=[n + number for n in lengths],
                outputs="all",
            )
        )


@both
def test_penalties_and_biases_hold_for_first_codes(model):
    plain = Sampling.greedy()
    frames = speak(open_cross(model), plain, 1, text=csm.text())
    first, others = int(frames[0, 0]), frames[0, 1:]
    cross = open_cross(model)
    cross.llm.process(Batch.of(csm.text()))
    forbidden = Sampling(temperature=0, seed=0, logit_bias={first: -np.inf})
    assert cross.frame([0], forbidden)[0][0] != first
    repeated = Sampling(temperature=0, seed=0, presence_penalty=50.0)
    assert np.array_equal(cross.frame([0], repeated)[0], frames[0])
    assert cross.frame([0], repeated, earlier={0: [first]})[0][0] != first
    inner = Sampling(temperature=2.0, seed=1, logit_bias={int(code): -np.inf for code in others})
    made = cross.frame([0], plain, depth_sampling=inner)[0]
    assert made[0] == first
    bare = Sampling(temperature=2.0, seed=1)
    assert np.array_equal(made, cross.frame([0], plain, depth_sampling=bare)[0])


@both
def test_a_frame_leaves_nothing_behind(model):
    cross = open_cross(model)
    cross.llm.process(Batch.of(csm.text()))
    before = cross.digest(0)
    one = cross.frame([0], SETTINGS[0])[0]
    assert cross.digest(0) == before
    assert cross.contexts["depth"].length(0) == 0
    assert np.array_equal(cross.frame([0], SETTINGS[0])[0], one)


@both
def test_rollback_fork_save_and_load(model, tmp_path):
    settings = SETTINGS[0]
    whole = speak(open_cross(model), settings, 6, text=csm.text())
    cross = open_cross(model, n_seq_max=3)
    speak(cross, settings, 3, text=csm.text())
    cross.fork(0, 1)
    cross.save(0, tmp_path / "state")
    assert np.array_equal(speak(cross, settings, 3, seq=1), whole[3:])
    assert np.array_equal(speak(cross, settings, 3, seq=0), whole[3:])
    cross.rollback(0, len(csm.text()) + 1)
    read(cross, whole[1:3])
    assert np.array_equal(speak(cross, settings, 3, seq=0), whole[3:])
    fresh = open_cross(model, n_seq_max=2)
    fresh.load(1, tmp_path / "state")
    assert np.array_equal(speak(fresh, settings, 3, seq=1), whole[3:])
    assert fresh.digest(1) == cross.digest(0)
    cross.remove(0)
    cross.fork(1, 0, stream=9)
    other = cross.frame([0], settings)[0]
    assert not np.array_equal(other, cross.frame([1], settings)[1])


def test_mistakes(model):
    llm = Context(model, 64, threads=1)
    alone = Cross(llm=llm)
    llm.process(Batch.of(csm.text()))
    with pytest.raises(LinkError, match="no role chooses codes"):
        alone.frame([0])
    cross = open_cross(model)
    with pytest.raises(BatchError, match="nothing to continue from"):
        cross.frame([0])
    with pytest.raises(BatchError):
        cross.frame([1])
    with pytest.raises(BatchError):
        cross.frame(0)
    out = cross.llm.process(Batch.of(csm.text()))
    with pytest.raises(SamplingError):
        cross.frame([0], "greedy")
    with pytest.raises(BatchError):
        cross.frame([0], earlier={0: "codes"})
    length, digest = cross.llm.length(0), cross.digest(0)
    for codes in (
        [[0] * (N - 1)],
        [[csm.N_CODES] + [0] * (N - 1)],
        [[-2] + [0] * (N - 1)],
        [[-1] * N],
    ):
        with pytest.raises(BatchError):
            cross.llm.process(Batch(codes=codes, pos=length))
    assert cross.digest(0) == digest
    with pytest.raises(BatchError):
        Batch(codes=[1, 2, 3])
    with pytest.raises(BatchError):
        Batch([1, 2], codes=[[1] * N])
    with pytest.raises(BatchError):
        cross.contexts["depth"].process(Batch(codes=[[1] * N]))
    with pytest.raises(BatchError, match="no such token"):  # of a codebook, not of the text
        cross.contexts["depth"].process(Batch([csm.N_CODES], pos=0))
    with pytest.raises(LinkError, match="too small"):
        Cross(llm=Context(model, 64), depth=Context(model, N - 1, graph_type="depth"))
    with pytest.raises(LinkError, match="codes"):
        cross.connect(Link(src="llm", tap="hidden", dst="depth", slot="codes"))
    assert out.logits.shape == (1, csm.N_CODES)
    with pytest.raises(GraphError):
        Context(model, 64, graph_type="deep")


def test_text_and_codes_in_one_row(model):
    """A row may be both: their embeddings are added."""
    w = csm.weights()
    table = w["depth_decoder.model.embed_tokens.weight"]
    codes = csm.speech(2)
    codes[1, 2:] = -1
    tokens = np.array([3, -1], np.int32)
    rows = np.zeros((2, csm.WIDTH), np.float32)
    rows[0] = w["embed_text_tokens.weight"][3]
    for t, frame in enumerate(codes):
        total = np.zeros(csm.WIDTH, np.float32)
        for i, code in enumerate(frame):
            if code >= 0:
                total += table[i * csm.N_CODES + code]
        rows[t] += total
    context = Context(model, 64, threads=1)
    made = context.process(Batch(tokens, codes=codes, outputs="all")).logits
    context.remove(0)
    assert np.array_equal(made, context.process(Batch(embeddings=rows, outputs="all")).logits)
