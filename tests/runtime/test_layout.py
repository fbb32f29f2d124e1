"""Where rows of images, video and audio stand, and prompts that are made of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpcore import (
    Audio,
    BatchError,
    Codes,
    Image,
    Prompt,
    Rows,
    Video,
    audio_positions,
    image_positions,
    text_positions,
    video_positions,
)

WIDTH = 4
few = st.integers(1, 5)


def rows(n, seed=0):
    return np.random.default_rng(seed).normal(size=(n, WIDTH)).astype(np.float32)


@given(st.integers(0, 1000), few, few, few, st.integers(1, 3))
def test_video(start, nt, nx, ny, step):
    wanted = [
        (start + step * t, start + y, start + x, 0)
        for t in range(nt)
        for y in range(ny)
        for x in range(nx)
    ]
    made = video_positions(start, nt, nx, ny, step=step)
    assert made.dtype == np.int32
    assert list(map(tuple, made.tolist())) == wanted
    assert made.max() == start + max(step * (nt - 1), nx - 1, ny - 1)
    assert np.array_equal(image_positions(start, nx, ny), video_positions(start, 1, nx, ny))


def test_text_and_audio():
    assert text_positions(3, 2).tolist() == [[3] * 4, [4] * 4]
    assert audio_positions(3, 2).tolist() == [[3, 3, 3, 0], [4, 4, 4, 0]]
    for bad in ((-1, 2), (0, 0), (0, 1.5), ("a", 1), (2**30, 1)):
        with pytest.raises(BatchError):
            text_positions(*bad)
    with pytest.raises(BatchError):
        video_positions(0, 1 << 12, 1 << 12, 1 << 12)


parts = st.one_of(
    st.integers(1, 4).map(lambda n: list(range(n))),
    st.tuples(few, few).map(lambda s: Image(rows(s[0] * s[1]), nx=s[0], ny=s[1])),
    st.tuples(few, few, few).map(
        lambda s: Video(rows(s[0] * s[1] * s[2]), nt=s[0], nx=s[1], ny=s[2], step=2)
    ),
    few.map(lambda n: Audio(rows(n))),
    few.map(lambda n: Rows(rows(n))),
)


@given(st.lists(parts, min_size=1, max_size=5), st.integers(0, 50), st.data())
def test_a_prompt_is_its_parts(given_parts, start, data):
    """Tokens, rows and positions in order; and the same of a part, from any start."""
    prompt = Prompt(*given_parts)
    own = [p for p in given_parts if isinstance(p, Audio | Video)]
    at, wanted, tokens = start, [], []
    for part in given_parts:
        is_rows = isinstance(part, Rows)
        wanted.append(part.positions(at) if is_rows else text_positions(at, len(part)))
        at = int(wanted[-1].max()) + 1
        tokens += [-1] * len(part) if isinstance(part, Rows) else part
    assert prompt.tokens.tolist() == tokens
    assert prompt.is_text == (-1 not in tokens)
    begin = data.draw(st.integers(0, len(prompt) - 1))
    end = data.draw(st.integers(begin + 1, len(prompt)))
    batch = prompt.part(begin, end).batch(seq=1, place=7, start=start, n_axes=4)
    assert batch.tokens.tolist() == tokens[begin:end]
    if own:
        assert np.array_equal(batch.pos, np.concatenate(wanted)[begin:end])
    else:
        assert batch.pos.tolist() == list(range(7, 7 + end - begin))
    if prompt.embeddings is not None:
        held = np.concatenate(
            [p.rows if isinstance(p, Rows) else np.zeros((len(p), WIDTH)) for p in given_parts]
        )
        assert np.array_equal(batch.embeddings, held[begin:end].astype(np.float32))
    plain = prompt.batch(place=3)
    assert plain.pos.tolist() == list(range(3, 3 + len(prompt)))


def test_codes_and_mistakes():
    prompt = Prompt([1], Codes([[3, 4]]), [2])
    assert prompt.codes.tolist() == [[-1, -1], [3, 4], [-1, -1]]
    assert prompt.embeddings is None
    for bad in (
        lambda: Prompt(),
        lambda: Prompt([]),
        lambda: Prompt("text"),
        lambda: Prompt([-1]),
        lambda: Prompt([[1, 2]]),
        lambda: Prompt(Rows(rows(2)), Rows(np.zeros((1, WIDTH + 1)))),
        lambda: Image(rows(5), nx=2, ny=3),
        lambda: Image(rows(6), nx=2, ny=0),
        lambda: Rows(np.zeros(3)),
        lambda: Rows(np.zeros((0, 3))),
        lambda: Codes([1, 2]),
        lambda: Codes([[1.5]]),
    ):
        with pytest.raises(BatchError):
            bad()
