"""Texts of rows: they depend on the row alone; without Ray."""

import numpy as np
import pytest

import mtpcore
from mtpcore.cluster import RowTexts
from mtpcore.cluster.rows import seed_of

OPTIONS = {"max_tokens": 6, "ignore_eos": True}


@pytest.fixture(scope="module")
def alone():
    """An LM that writes each text by itself."""
    with mtpcore.LM("demo", n_ctx=100, threads=1) as lm:
        yield lm


def test_rows_of_one_s_own_pipeline(alone):
    write = RowTexts("demo", key="k", seed=5, lm={"n_ctx": 100, "threads": 1}, options=OPTIONS)
    batch = {"k": np.array(["a", "b"]), "prompt": np.array(["x = ", [5, 6]], object)}
    rows = write(batch)
    expected = [
        alone.generate(prompt, seed=seed_of(5, key), **OPTIONS).text
        for key, prompt in (("a", "x = "), ("b", [5, 6]))
    ]
    assert rows["text"].tolist() == expected
    assert rows["n_tokens"].tolist() == [6, 6]
    reverse = write({name: column[::-1] for name, column in batch.items()})
    assert reverse["text"].tolist() == expected[::-1]
    strange = write({"k": np.array([1]), "prompt": np.array([None], object)})
    assert strange["text"].tolist() == [None]
    assert "messages" in strange["error"][0]
    with pytest.raises(mtpcore.BatchError, match="no such column"):
        write({"k": np.array([1])})
    with pytest.raises(mtpcore.BatchError, match="seed is no option"):
        RowTexts("demo", options={"seed": 1})
    assert len({seed_of(0, "1"), seed_of(0, 1), seed_of(1, 1)}) == 3
