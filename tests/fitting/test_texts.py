"""Which files a head is fitted to, and which are held out."""

import numpy as np
import pytest

from mtpcore.errors import BatchError, ModelFileError
from mtpcore.fitting.texts import cut_pieces, find_texts, split_files


@pytest.fixture
def files(tmp_path):
    made = []
    for i in range(60):
        path = tmp_path / f"{i}.txt"
        path.write_text(f"text number {i}\n" * (i + 1))
        made.append(path)
    return made


@pytest.mark.parametrize("seed", range(5))
def test_no_content_is_on_both_sides(files, tmp_path, seed):
    copies = []
    for path in files:
        copies.append(tmp_path / f"copy-{path.name}")
        copies[-1].write_bytes(path.read_bytes())
    split = split_files([*files, *copies], seed)
    train, held_out = ({path.read_bytes() for path in side} for side in split)
    assert held_out
    assert not train & held_out
    assert len(split.train) + len(split.held_out) == len(train | held_out) == len(files)


def test_the_split_depends_on_contents_and_seed_alone(files):
    split = split_files(files, 3)
    assert split_files(files[::-1], 3) == split
    assert {frozenset(split_files(files, seed).held_out) for seed in range(4)} != {
        frozenset(split.held_out)
    }


def test_a_file_stays_on_its_side_when_others_come(files):
    splits = (split_files(files[:40], seed) for seed in range(50))
    seed, before = next((i, one) for i, one in enumerate(splits) if len(one.held_out) > 1)
    after = split_files(files, seed)
    assert {*before.held_out} <= {*after.held_out}
    assert {*before.train} <= {*after.train}


def test_one_content_is_not_enough(files, tmp_path):
    (tmp_path / "again").write_bytes(files[0].read_bytes())
    with pytest.raises(BatchError, match="several texts"):
        split_files([files[0], tmp_path / "again"], 0)
    with pytest.raises(ModelFileError):
        split_files([files[0], tmp_path / "none"], 0)


def test_folders_stand_for_the_texts_in_them(tmp_path):
    (tmp_path / "a").mkdir()
    for name in ("a/b.py", "a/c.bin", "d.md"):
        (tmp_path / name).write_text("x")
    assert list(find_texts([tmp_path / "a", tmp_path / "a" / "c.bin"])) == [
        tmp_path / "a" / "b.py",
        tmp_path / "a" / "c.bin",
    ]


def test_pieces_are_the_text_without_a_short_rest():
    tokens = np.arange(75, dtype=np.int32)
    assert [piece.tolist() for piece in cut_pieces(tokens, 32)] == [
        list(range(32)),
        list(range(32, 64)),
    ]
    assert sum(map(len, cut_pieces(tokens[:72], 24))) == 72
