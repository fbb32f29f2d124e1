"""Adapters of all products of each family: beside the model as merged into it, and rows alone."""

import numpy as np
import pytest
from harness.adapters import matrices_of, write_adapter
from harness.every_trunk import FAMILIES, write_trunk
from harness.published import tokenizer, write_checkpoint
from harness.published_families import N_VOCAB, known, tensors

from mtpcore import Batch, Context, load_adapter, load_model
from mtpcore.conversion import convert

PUBLISHED = known()
NEAR = 1e-9
"""Mean square of the differences of logits, beside that of the logits: rounding."""
SENSITIVE = {"qwen3next": 1e-7}
"""Of the first layer's norm a last bit in each weight makes up to 1.6e-8 of the merged model's."""


def write_model(folder, name):
    if name in FAMILIES:
        return write_trunk(folder, name)
    family = PUBLISHED[name]
    write_checkpoint(folder / "hf", family["config"], tensors(family["shapes"]), tokenizer(N_VOCAB))
    convert(folder / "hf", folder / "model.gguf", outtype="f32")
    return folder / "model.gguf"


def is_plain(model):
    """Whether logits are of tokens that are read alone."""
    program = model.program()
    return not program.n_codes and program.whole_slot is None and "logits" in program.outputs


# Every third of those that are variants of one layer; all hold.
@pytest.mark.parametrize("name", [*FAMILIES, *sorted(PUBLISHED)[::3]])
def test_beside_the_model_as_merged_into_it(tmp_path, name):
    path = write_model(tmp_path, name)
    with load_model(path) as model:
        if not is_plain(model):
            pytest.skip("reads more than tokens")
        shapes = matrices_of(model)
        own = {n: s for n, s in shapes.items() if n in model.tensors}  # not the output that is tied
        if own.keys() != shapes.keys():
            del own["token_embd.weight"]  # which would change that output, too, where it is merged
        assert own
        write_adapter(tmp_path / "a.gguf", model.architecture, own, seed=4, size=0.1)
        adapter = load_adapter(tmp_path / "a.gguf")
        tokens = np.random.default_rng(2).integers(0, model.hparams.n_vocab, 12)
        size = {"n_ctx": 64, "kv_dtype": "f32", "threads": 1}

        def run(context, seq=0):
            return context.process(Batch.of(tokens, seq=seq, pos=0, outputs="all")).logits

        plain = run(Context(model, **size))
        context = Context(model, n_seq_max=2, adapters={"a": adapter}, **size)
        context.adapt(1, ["a"])
        beside = run(context, 1)
        assert run(context).tobytes() == plain.tobytes()
        both = Batch(
            np.tile(tokens, 2), seq=np.repeat([2, 3], 12), pos=np.tile(range(12), 2), outputs="all"
        )
        context = Context(model, n_seq_max=4, adapters={"a": adapter}, **size)
        context.adapt(3, ["a"])
        assert context.process(both).logits.tobytes() == plain.tobytes() + beside.tobytes()
    with load_model(path, adapters=[(adapter, 1.0)]) as model:
        merged = run(Context(model, **size)).astype(np.float64)
    changed = np.square(beside - plain).mean()
    assert changed > 1e-4 * np.square(plain).mean()
    near = SENSITIVE.get(name, NEAR)
    assert np.square(beside - merged).mean() < near * np.square(merged).mean()
