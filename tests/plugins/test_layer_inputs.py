"""The rows that EAGLE heads read of the trunks: the input of layer i.

The witness is the model cut off before layer i, a file of its own: its state before the final norm.
After the last layer that is the state of the whole model.
"""

import numpy as np
import pytest
from harness.every_trunk import FAMILIES, write_trunk
from harness.fixtures import model_file, references

from mtpcore import Batch, Context, link, load_model
from mtpcore.gguf import open_model_file, write_model_file
from mtpcore.runtime.fit import block_of

TRUNKS = {"ds-12": 4, "glm-11": 4, "mimo-14": 6, "mimo2-15": 4}
PER_BLOCK = ("attention.head_count_kv", "attention.sliding_window_pattern")


def write_cut(source, path, n):
    """Write the first n layers of a model, without heads."""
    with open_model_file(source) as file:
        kept = {name: t for name, t in file.tensors.items() if (block_of(name) or 0) < n}
        cut = {"block_count": n, "nextn_predict_layers": 0}
        for key in PER_BLOCK:
            values = file.metadata.get(f"{file.architecture}.{key}")
            if isinstance(values, (list, np.ndarray)):
                cut[key] = np.asarray(values).tolist()[:n]
        cut = {f"{file.architecture}.{key}": value for key, value in cut.items()}
        write_model_file(
            path,
            file.architecture,
            file.metadata | cut,
            {name: t.raw() for name, t in kept.items()},
            {name: t.type for name, t in kept.items()},
        )
    return path


def tapped(path, tokens, taps):
    with load_model(path) as model:
        out = Context(model, 64, kv_dtype="f32", taps=taps).process(
            Batch.of(tokens, outputs="none")
        )
        return model.hparams.n_layers, [out.tap(tap).copy() for tap in taps]


@pytest.mark.parametrize("name", TRUNKS)
def test_the_input_of_a_layer_is_what_the_layers_before_it_make(name, tmp_path):
    path, tokens = model_file(name), references(name)["prompts"][0][:16]
    n_layers = TRUNKS[name]
    taps = [f"layer_input:{n}" for n in range(n_layers)]
    found_layers, found = tapped(path, tokens, taps)
    assert found_layers == n_layers
    with open_model_file(path) as file:
        table = file.tensors["token_embd.weight"].array()
    assert np.array_equal(found[0], table[tokens])
    for n in range(1, n_layers):
        cut = write_cut(path, tmp_path / f"{n}.gguf", n)
        made, (wanted,) = tapped(cut, tokens, ["residual"])
        assert made == n
        assert np.array_equal(found[n], wanted)
        assert not np.allclose(found[n], found[n - 1], atol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_leaves_the_last_layer_would_enter_one_more(family, tmp_path):
    with load_model(write_trunk(tmp_path, family)) as model:
        n = model.hparams.n_layers
        taps = [f"layer_input:{n - 1}", f"layer_input:{n}", "residual"]
        cross = link(Context(model, 64, kv_dtype="f32", taps=taps), [])
        if "encoder" in cross.contexts:
            cross.encode({0: [5, 6, 7]})
        out = cross.llm.process(Batch.of(np.arange(1, 9), outputs="none"))
        before, entered, left = (out.tap(tap).copy() for tap in taps)
    assert np.array_equal(entered, left)
    assert not np.allclose(entered, before, atol=1e-3)
