"""Adapter files: what is read of them, and what is refused by name."""

import numpy as np
import pytest
from harness.adapters import change_of, write_adapter

from mtpcore import ModelFileError
from mtpcore.gguf import write_model_file
from mtpcore.gguf.adapter import load_adapter

KEYS = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": 8.0}
PAIR = {
    "w.weight.lora_a": np.ones((2, 6), np.float32),
    "w.weight.lora_b": np.ones((5, 2), np.float32),
}


@pytest.mark.parametrize("alpha", [0.0, 8.0])
def test_what_is_added_is_alpha_by_rank_of_each_matrix(tmp_path, alpha):
    shapes = {"one.weight": (5, 6), "two.weight": (1, 7)}
    ranks = {"one.weight": 3, "two.weight": 1}
    changes = write_adapter(tmp_path / "a.gguf", "llama", shapes, rank=ranks, alpha=alpha)
    adapter = load_adapter(tmp_path / "a.gguf")
    assert adapter.architecture == "llama"
    assert adapter.name == "a"
    assert {name: one.rank for name, one in adapter.matrices.items()} == ranks
    for name, change in changes.items():
        np.testing.assert_allclose(change_of(adapter.matrices[name]), change, rtol=1e-5, atol=1e-6)


def test_a_digest_is_of_all_that_changes_numbers(tmp_path):
    def digest(**changed):
        given = {"seed": 1, "alpha": 8.0, **changed}
        write_adapter(tmp_path / "a.gguf", "llama", {"w.weight": (5, 6)}, **given)
        return load_adapter(tmp_path / "a.gguf").digest

    assert digest() == digest(**{"general.name": "another"})
    assert len({digest(), digest(seed=2), digest(alpha=4.0), digest(rank=2)}) == 4


BROKEN = {
    "a model": ({"general.type": "model"}, {}, "no adapter"),
    "another kind": ({"adapter.type": "ia3"}, {}, "unknown kind"),
    "tokens that invoke it": ({"adapter.alora.invocation_tokens": [1, 2]}, {}, "aLoRA"),
    "an unknown key": ({"adapter.lora.rslora": True}, {}, "not known"),
    "no alpha": ({"adapter.lora.alpha": "8"}, {}, "no factor"),
    "alpha below 0": ({"adapter.lora.alpha": -1.0}, {}, "no factor"),
    "half a pair": ({}, {"w.weight.lora_b": None}, "half of a pair"),
    "a norm": ({}, {"n_norm.weight": np.ones(6, np.float32)}, "no half of a pair"),
    "other ranks": ({}, {"w.weight.lora_b": np.ones((5, 3), np.float32)}, "do not fit"),
    "integers": ({}, {"w.weight.lora_a": np.ones((2, 6), np.int32)}, "no floating-point"),
    "nothing": ({}, dict.fromkeys(PAIR), "without tensors"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_no_adapter_is_refused(tmp_path, case):
    keys, tensors, message = BROKEN[case]
    kept = {name: t for name, t in {**PAIR, **tensors}.items() if t is not None}
    write_model_file(tmp_path / "a.gguf", "llama", {**KEYS, **keys}, kept)
    with pytest.raises(ModelFileError, match=message) as raised:
        load_adapter(tmp_path / "a.gguf")
    assert "a.gguf" in str(raised.value)


def test_values_that_are_no_numbers_are_refused(tmp_path):
    """They would make rows without the adapter NaN, too, which they multiply by 0."""
    tensors = {**PAIR, "w.weight.lora_b": np.full((5, 2), np.nan, np.float32)}
    write_model_file(tmp_path / "a.gguf", "llama", KEYS, tensors)
    with pytest.raises(ModelFileError, match="not finite"):
        load_adapter(tmp_path / "a.gguf").matrices["w.weight"].factors()
