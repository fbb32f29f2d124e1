"""A trunk completed by its head, in the layouts that exist."""

import logging

import numpy as np
import pytest

from mtpcore.errors import ModelFileError
from mtpcore.gguf import merge, open_model_file, write_model_file


def write(path, names, n_layers, n_heads, arch="toy", **more):
    metadata = {f"{arch}.block_count": n_layers, f"{arch}.embedding_length": 8, "general.name": "m"}
    if n_heads is not None:
        metadata[f"{arch}.nextn_predict_layers"] = n_heads
    metadata |= {key.replace("__", "."): value for key, value in more.items()}
    values = {name: np.full((2, 4), i, np.float32) for i, name in enumerate(names, len(path.name))}
    write_model_file(path, arch, metadata, values)
    return open_model_file(path)


TRUNK = ["token_embd.weight", "blk.0.w", "blk.1.w"]
HEAD = ["token_embd.weight", "blk.2.nextn.eh_proj.weight"]


@pytest.mark.parametrize("declared", [(2, None), (2, 0), (3, 1)])
def test_a_head_completes_a_trunk(tmp_path, declared):
    kv = np.array([1, 2, 3][: declared[0]], np.uint32)
    trunk = write(tmp_path / "t.gguf", TRUNK, *declared, toy__kv=kv, general__name="trunk")
    head = write(tmp_path / "mtp-head.gguf", HEAD, 3, 1, toy__kv=np.array([1, 2, 3], np.uint32))
    both = merge(trunk, head)
    assert list(both.tensors) == [*TRUNK, HEAD[1]]
    assert both.tensors[TRUNK[0]].path == trunk.path
    assert both.tensors[HEAD[1]].array()[0, 0] == len("mtp-head.gguf") + 1
    assert both.metadata["general.name"] == "trunk"
    assert both.metadata["toy.block_count"] == 3
    assert both.metadata["toy.nextn_predict_layers"] == 1
    assert both.metadata["toy.kv"].tolist() == [1, 2, 3]
    both.close()
    with pytest.raises(ModelFileError, match="closed"):
        head.tensors[HEAD[1]].raw()


def test_disagreement_is_said(tmp_path, caplog):
    trunk = write(tmp_path / "t.gguf", TRUNK, 2, None, toy__eps=0.5)
    head = write(tmp_path / "h.gguf", HEAD, 3, 1, toy__eps=0.25)
    with caplog.at_level(logging.WARNING, "mtpcore"):
        assert merge(trunk, head).metadata["toy.eps"] == 0.5
    assert [record.getMessage().split("disagree on ")[1] for record in caplog.records] == [
        "toy.eps: the first holds"
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arch": "other"}, "different architectures"),
        ({"n_layers": 4}, "depth of the trunk"),
        ({"toy__embedding_length": 16}, "embedding_length"),
        ({"toy__embedding_length": np.array([8, 8])}, "embedding_length"),
    ],
)
def test_strangers_are_refused(tmp_path, change, message):
    trunk = write(tmp_path / "t.gguf", TRUNK, 2, None)
    head = write(tmp_path / "h.gguf", HEAD, **{"n_layers": 3, "n_heads": 1} | change)
    with pytest.raises(ModelFileError, match=message):
        merge(trunk, head)


@pytest.mark.parametrize("other", [[[1, 2], [3]], [[1, 2], [3, 5]], [[1, 2]], 7, [1, 2]])
def test_arrays_in_lists_are_compared(tmp_path, caplog, other):
    """As a damaged file has them; the ``gguf`` package writes none of unequal lengths."""

    def arrays(value):
        return [np.array(part) for part in value] if isinstance(value, list) else value

    trunk, head = write(tmp_path / "t.gguf", TRUNK, 2, None), write(tmp_path / "h.gguf", HEAD, 3, 1)
    trunk.metadata["toy.x"], head.metadata["toy.x"] = arrays([[1, 2], [3]]), arrays(other)
    with caplog.at_level(logging.WARNING, "mtpcore"):
        merge(trunk, head)
    assert ("disagree on toy.x" in caplog.text) == (other != [[1, 2], [3]])


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize(
    ("of_trunk", "of_head", "wanted", "agree"),
    [
        (8, [8, 8, 4], [8, 8, 4], True),
        ([8, 2], 8, [8, 2, 8], False),
        ([8, 8], 8, [8, 8, 8], True),
        (8, [2, 2, 4], [8, 8, 4], False),
        ([8, 2], [8, 2, 4], [8, 2, 4], True),
        ([8, 2], [7, 2, 4], [8, 2, 4], False),
        (8, 4, 8, False),
        (None, [8, 8, 4], [8, 8, 4], True),
    ],
)
def test_each_file_says_what_its_layers_have(
    tmp_path, caplog, counted, of_trunk, of_head, wanted, agree
):
    """By one number for all layers, or by one for each; the trunk's file may count all of them."""
    if counted and isinstance(of_trunk, list):
        of_trunk = [*of_trunk, 1]
    values = {
        name: {} if value is None else {"toy__kv": np.array(value) if np.ndim(value) else value}
        for name, value in (("trunk", of_trunk), ("head", of_head))
    }
    declared = (3, 1) if counted else (2, None)
    trunk = write(tmp_path / "t.gguf", TRUNK, *declared, **values["trunk"])
    head = write(tmp_path / "h.gguf", HEAD, 3, 1, **values["head"])
    with caplog.at_level(logging.WARNING, "mtpcore"):
        merged = merge(trunk, head).metadata["toy.kv"]
    assert np.array_equal(merged, wanted)
    assert ("disagree on toy.kv" not in caplog.text) == agree
