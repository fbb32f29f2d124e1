"""Frames: requests of a model that writes codes."""

import numpy as np
import pytest
from harness import csm
from harness.published import tokenizer, write_checkpoint

from mtpcore import (
    Batch,
    BatchError,
    BusyError,
    CapacityError,
    Codes,
    Context,
    Frames,
    Generator,
    LinkError,
    Prompt,
    Rows,
    Sampling,
    link,
    load_model,
)
from mtpcore.conversion import convert

SETTINGS = Sampling(temperature=0.9, top_k=8, seed=7)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("csm")
    write_checkpoint(folder / "hf", csm.configuration(), csm.weights(), tokenizer(csm.N_TEXT))
    convert(folder / "hf", folder / "model.gguf", outtype="f32")
    with load_model(folder / "model.gguf") as model:
        yield model


def open_frames(model, n_ctx=64, n_seq_max=1, **settings):
    context = Context(model, n_ctx, n_seq_max=n_seq_max, threads=1)
    return Frames(context, sampling=SETTINGS, **settings)


PROMPTS = [
    Prompt(csm.text()),
    Prompt(csm.text(4), Codes(csm.speech())),
    Prompt(Codes(csm.speech(2)), csm.text(2), Codes(csm.speech(1))),
    Prompt([1]),
]


def test_requests_together_are_requests_alone(model):
    alone = [list(open_frames(model).generate(prompt, max_frames=6)) for prompt in PROMPTS]
    together = open_frames(model, n_seq_max=3)  # one has to wait
    requests = [together.add(prompt, max_frames=6) for prompt in PROMPTS]
    while together.active:
        together.step()
    for request, frames in zip(requests, alone, strict=True):
        assert np.array_equal(request.frames, frames)
        assert request.finish_reason == "length"
    assert not any(together.cross.llm.length(seq) for seq in range(3))


def test_settings_of_each_request(model):
    frames = open_frames(model, depth_sampling=Sampling.greedy())
    plain = list(frames.generate([1, 2], max_frames=3))
    other = list(frames.generate([1, 2], max_frames=3, sampling=Sampling(seed=8)))
    inner = list(frames.generate([1, 2], max_frames=3, depth_sampling=SETTINGS))
    assert np.array_equal(inner, list(open_frames(model).generate([1, 2], max_frames=3)))
    assert not np.array_equal(plain, other)
    assert not np.array_equal(plain, inner)
    assert all(frame.dtype == np.int32 and frame.shape == (5,) for frame in plain)


def test_the_end(model):
    """A frame that is all zeros but for its last code ends the text, and is none of it."""
    frames = open_frames(model)
    text = list(frames.generate(csm.text(), max_frames=5))
    codes = frames.codebooks
    assert (codes.end, codes.n_end) == (0, csm.N_CODEBOOKS - 1)
    zeros = Sampling(temperature=0, seed=0, logit_bias={0: 1e9})
    decoder = frames.cross.speculation.codes
    decode, n_decoded = decoder.decode, 0

    def decode_an_end(jobs):
        """Let the third frame be zeros."""
        nonlocal n_decoded
        made = decode(jobs)
        n_decoded += 1
        for frame in made.values():
            if n_decoded == 2:
                frame[:-2], frame[-2] = 0, 1  # nearly
            if n_decoded == 3:
                frame[:-1], frame[-1] = 0, 3
        return made

    decoder.decode = decode_an_end
    request = frames.add(csm.text(), max_frames=5)
    while frames.active:
        frames.step()
    assert request.finish_reason == "end"
    assert len(request.frames) == 2
    assert np.array_equal(request.frames[0], text[0])
    assert frames.cross.llm.length(0) == 0
    decoder.decode = decode
    assert next(frames.generate(csm.text(), max_frames=1, sampling=zeros))[0] == 0


def test_the_end_of_the_context(model):
    frames = open_frames(model, n_ctx=len(csm.text()) + 3)
    request = frames.add(csm.text(), max_frames=100)
    while frames.active:
        frames.step()
    assert request.finish_reason == "length"
    assert len(request.frames) == 4  # the last one is not read any more
    longer = list(open_frames(model).generate(csm.text(), max_frames=4))
    assert np.array_equal(request.frames, longer)


def test_a_round_that_fails_happened_not_at_all(model):
    frames = open_frames(model, n_seq_max=2)
    wanted = [list(open_frames(model).generate(p, max_frames=4)) for p in PROMPTS[:2]]
    requests = [frames.add(prompt, max_frames=4) for prompt in PROMPTS[:2]]
    codes = frames.cross.speculation.codes
    runs = codes.runner.plan.run_schedule

    def fail(schedule):
        runs(schedule)
        raise KeyboardInterrupt

    while frames.active:
        digests = [frames.cross.digest(seq) for seq in range(2)]
        counts = [len(request.frames) for request in requests]
        codes.runner.plan.run_schedule = fail
        with pytest.raises(KeyboardInterrupt):
            frames.step()
        codes.runner.plan.run_schedule = runs
        assert [frames.cross.digest(seq) for seq in range(2)] == digests
        assert [len(request.frames) for request in requests] == counts
        frames.step()
    for request, made in zip(requests, wanted, strict=True):
        assert np.array_equal(request.frames, made)


def test_readers_that_leave(model):
    frames = open_frames(model)
    reader = frames.generate(csm.text(), max_frames=5)
    first = next(reader)
    reader.close()
    assert frames.cross.llm.length(0) == 0
    assert np.array_equal(next(frames.generate(csm.text(), max_frames=5)), first)
    request = frames.add(csm.text())
    frames.step()
    frames.cancel(request)
    assert request.finish_reason == "cancelled"
    assert len(request.frames) == 1
    frames.cancel(request)
    assert not frames.active
    assert frames.add([1], max_frames=0).finish_reason == "length"


def test_mistakes(model):
    frames = open_frames(model)
    for prompt in ("text", [], [[1, 2]], [-1], [1.5]):
        with pytest.raises(BatchError):
            frames.add(prompt)
    with pytest.raises(CapacityError):
        frames.add([1] * 65)
    with pytest.raises(BatchError):
        frames.add([1], max_frames=-1)
    for prompt, said in (
        (Prompt(Codes([[1, 2]])), "another number of codebooks"),
        (Prompt([1], Codes(csm.speech() + 10**6)), "no such code"),
        ([1, 10**6], "no such token"),
        (Prompt([1], Rows(np.zeros((2, 5)))), "another width"),
    ):
        for ask in (frames.add, frames.generate):
            with pytest.raises(BatchError, match=said) as caught:
                ask(prompt)
            assert caught.value.where.startswith("prompt")
    assert not frames.active
    with pytest.raises(BatchError):
        frames.cancel(open_frames(model).add([1]))
    frames.cross.llm.process(Batch.of([1, 2]))
    frames.add([1])
    with pytest.raises(CapacityError, match="no sequence is free"):
        frames.step()
    with pytest.raises(LinkError, match="writes codes"):
        Generator(link(Context(model, 64)))
    with pytest.raises(LinkError):
        Frames(Context(load_model("demo"), 64))
    with pytest.raises(LinkError):
        Frames(model)

    def again(schedule):
        with pytest.raises(BusyError):
            frames.step()
        raise ZeroDivisionError

    frames = open_frames(model)
    frames.add([1])
    frames.cross.prepare()
    frames.cross.speculation.codes.runner.plan.run_schedule = again
    with pytest.raises(ZeroDivisionError):
        frames.step()
