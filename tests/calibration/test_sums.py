"""Sums of squares, by matrix and by what chose it."""

import numpy as np
import pytest

from mtpcore.calibration.sums import ChunkSums, TotalSums, sum_squares
from mtpcore.conversion.importance_file import ImportanceSums
from mtpcore.errors import BatchError, ModelFileError
from mtpcore.graph import ProductInput, Weight

RNG = np.random.default_rng(5)
X = RNG.normal(size=(150, 7)).astype(np.float32)


def read(*names, shape=(3, 7), ids=None, how="one"):
    return ProductInput("read %1", ids, how, tuple(Weight(name, name, shape) for name in names))


def test_squares_are_summed_in_double_precision():
    x = np.full((5000, 2), 1 + 2.0**-20, np.float32)
    assert sum_squares(x).tolist() == [float(x[0, 0]) ** 2 * 5000] * 2
    np.testing.assert_allclose(sum_squares(X), np.square(X.astype(np.float64)).sum(0), rtol=1e-14)


@pytest.mark.parametrize("by_rank", [False, True])
def test_experts_get_the_rows_that_chose_them(by_rank):
    """One count for each row and rank; an expert that no row chose has none."""
    ids = RNG.integers(0, 4, (len(X), 2)).astype(np.int32)
    ids[ids == 2] = 3
    rows = RNG.normal(size=(len(X), 2, 7)).astype(np.float32) if by_rank else X
    sums = ChunkSums()
    what = read("up", "gate", shape=(4, 5, 7), ids="read %2", how="ids")
    for begin in (0, 64):
        part = slice(begin, begin + 64 if not begin else None)
        sums.add("llm", what, rows[part], ids[part])
    found = sums.by_matrix()
    each = rows if by_rank else np.repeat(X[:, None], 2, axis=1)
    for expert in range(4):
        chosen = each[ids == expert].astype(np.float64)
        np.testing.assert_allclose(found["up"][0][expert], np.square(chosen).sum(0), rtol=1e-13)
        assert found["gate"][1][expert] == len(chosen)
    assert found["up"][1][2] == 0
    assert not found["up"][0][2].any()


def test_each_head_has_its_rows():
    rows = RNG.normal(size=(20, 3, 4)).astype(np.float32)
    sums = ChunkSums()
    sums.add("llm", read("w", shape=(3, 2, 4), how="heads"), rows, None)
    found, counts = sums.by_matrix()["w"]
    np.testing.assert_allclose(found, np.square(rows.astype(np.float64)).sum(0), rtol=1e-13)
    assert counts.tolist() == [20] * 3
    stacked, joined = TotalSums({"w": (3, 4)}), TotalSums({"w": (1, 4)})
    for total in (stacked, joined):
        total.add(sums)
    np.testing.assert_allclose(joined.sums["w"][0], stacked.sums["w"].sum(0), rtol=1e-6)
    assert joined.counts["w"].tolist() == [60]


def test_what_is_read_twice_counts_twice():
    """As layers that run again, or a table that two graphs read."""
    sums = ChunkSums()
    sums.add("llm", read("w"), X, None)
    sums.add("draft", read("w"), X[:10], None)
    total = TotalSums({"w": (1, 7)})
    total.add(sums)
    assert total.counts["w"].tolist() == [160]
    np.testing.assert_allclose(total.sums["w"][0], sum_squares(X) + sum_squares(X[:10]), rtol=1e-6)


def test_numbers_that_are_not_finite_add_nothing():
    total, sums = TotalSums({"a": (1, 7), "b": (1, 7)}), ChunkSums()
    bad = X.copy()
    bad[3, 2] = np.nan
    sums.add("llm", read("a"), X, None)
    sums.add("draft", read("b"), bad, None)
    with pytest.raises(BatchError, match="not finite"):
        total.add(sums)
    assert total.sums == total.counts == {}


def given(sums, counts, form="gguf"):
    arrays = np.array(sums, np.float32), np.array(counts)
    return ImportanceSums({"w": arrays[0]}, {"w": arrays[1]}, form=form)


def test_files_are_added():
    """Of the old form sums and counts are those of chunks, and of stacks there is one count."""
    total = TotalSums({"w": (2, 3)})
    total.merge(given([[1, 2, 3], [4, 5, 6]], [2, 0]), 10, "a")
    total.merge(given([[1, 2, 3, 4, 5, 6]], [1], "dat"), 10, "b")
    np.testing.assert_array_equal(total.sums["w"], [[11, 22, 33], [44, 55, 66]])
    assert total.counts["w"].tolist() == [12, 10]
    for sums, counts in (([[1, 2, 3]], [1]), (np.ones((3, 2)), [1, 1, 1])):
        with pytest.raises(ModelFileError, match="of another model"):
            total.merge(given(sums, counts), 10, "c")
