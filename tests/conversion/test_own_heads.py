"""Heads in a file of their own: their tensors count them, in each layout in which they come."""

import logging
import types

import msgspec
import numpy as np
import pytest
from harness.published import save_tensors, small_config, small_tensors, write_checkpoint

import mtpcore
from mtpcore.conversion import convert
from mtpcore.discovery.registry import Registry
from mtpcore.errors import ModelFileError
from mtpcore.gguf import open_model_file
from mtpcore.plugin import Checkpoint, DrafterSpec, Feed, Fit, Heads, Outputs, Rename, hookimpl

WIDTH = N_VOCAB = 32
N_HEADS = 3


class Sizes(msgspec.Struct, frozen=True):
    """What the core asks of a drafter in its own file."""

    n_vocab: int = N_VOCAB
    width: int = WIDTH


def guess(g, inputs, h):
    """Make logits of the target's row, each head by a matrix of its own."""
    return Outputs(logits=g.matmul(g.output_rows(inputs["hidden"]), "blk.{n}.guess.weight"))


def layout(source, **more):
    """Return the table of heads whose matrix is called ``source``."""
    return Checkpoint(
        layers="n_heads",
        heads=source,
        counts=("n_heads",),
        tensors=(Rename(source, "blk.{n}.guess.weight"),),
        **more,
    )


GUESS = DrafterSpec(
    name="guess",
    fit=Fit(architectures=frozenset({"guess"}), tensors=("blk.{n}.guess.weight",)),
    standalone=True,
    hparams=lambda fields, tensors: Sizes(),
    build=guess,
    feeds=(Feed(slot="hidden", taps=("hidden",)),),
    heads=Heads(order="each-step", hidden_from="target"),
    checkpoint=layout("guesses.{n}.weight", architectures=frozenset({"GuessModel"})),
    layouts=(layout("{i}.out", architectures=frozenset(), requires=("guess_of",)),),
)
PLUGIN = types.ModuleType("mtpcore_guess")
PLUGIN.mtpcore_drafters = hookimpl(lambda: [GUESS])
KNOWN = Registry.of(mtpcore.models, PLUGIN)
LAYOUTS = {
    "guesses.{}.weight": {"architectures": ["GuessModel"]},
    "{}.out": {"guess_of": "somebody/some-model"},
}


@pytest.fixture
def convert_heads(tmp_path):
    """Convert heads of these numbers; return the file."""
    config = small_config()
    target = write_checkpoint(tmp_path / "target", config, small_tensors(config))

    def run(name, numbers, n_heads=N_HEADS):
        folder = write_checkpoint(tmp_path / "hf", LAYOUTS[name] | {"n_heads": n_heads}, {})
        made = {name.format(n): np.full((N_VOCAB, WIDTH), n, np.float32) for n in numbers}
        save_tensors(folder / "model.safetensors", made)
        convert(folder, tmp_path / "guess.gguf", outtype="f32", target=target, plugins=KNOWN)
        return tmp_path / "guess.gguf"

    return run


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("n_heads", [2, N_HEADS, 9])
def test_tensors_count(convert_heads, caplog, name, n_heads):
    with caplog.at_level(logging.WARNING, "mtpcore"):
        path = convert_heads(name, range(N_HEADS), n_heads)
    assert ("tensors are of 3" in caplog.text) == (n_heads != N_HEADS)
    with open_model_file(path) as file:
        assert file.metadata["guess.block_count"] == N_HEADS
        assert "guess.nextn_predict_layers" not in file.metadata
        for n in range(N_HEADS):
            assert (file.tensors[f"blk.{n}.guess.weight"].array() == n).all()
        assert len(file.tensors) == N_HEADS


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize(("numbers", "said"), [([0, 2], "one after the other"), ([], "missing")])
def test_heads_that_are_not_there(convert_heads, name, numbers, said):
    with pytest.raises(ModelFileError, match=said):
        convert_heads(name, numbers)


def test_a_variant_has_no_layouts():
    variant = mtpcore.plugin.as_variant(GUESS, "guess_tree", evidence="")
    assert (variant.checkpoint, variant.layouts) == (None, ())
