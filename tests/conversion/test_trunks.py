"""Published checkpoints of every trunk, converted, against the restatement of their formulas."""

import numpy as np
import pytest
from harness.published import write_checkpoint
from harness.trunks import CONFIGS, N_VOCAB, checkpoint, configuration, published, witness

import mtpcore
from mtpcore.conversion import convert


@pytest.mark.parametrize("name", CONFIGS)
def test_a_converted_checkpoint_computes_what_it_should(name, tmp_path):
    c = CONFIGS[name]
    weights = checkpoint(c, seed=list(CONFIGS).index(name))
    write_checkpoint(tmp_path / "hf", configuration(c), published(c, weights))
    convert(tmp_path / "hf", tmp_path / "model.gguf", outtype="f32")
    tokens = np.random.default_rng(1).integers(0, N_VOCAB, 20).astype(np.int32)
    wanted = witness(c, weights, tokens)
    with mtpcore.load_model(tmp_path / "model.gguf") as model:
        assert ("output.weight" in model.tensors) == (not c.tied)
        context = mtpcore.Context(model, 64, kv_dtype="f32", threads=1, taps=["hidden"])
        out = context.process(mtpcore.Batch.of(tokens, outputs="all"))
        assert np.abs(out.logits - wanted["logits"]).max() < 1e-3
        assert np.abs(out.tap("hidden") - wanted["hidden"]).max() < 1e-3
