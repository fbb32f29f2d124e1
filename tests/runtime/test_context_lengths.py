"""What a graph computes in long contexts alone."""

import numpy as np
import pytest
from harness.every_trunk import write_trunk

from mtpcore import Batch, Context, StateError, load_model
from mtpcore.gguf import open_model_file, write_model_file

N_SHORT, N_LONG = 40, 41
LONG, SHORT, ALWAYS = "rope_factors_long.weight", "rope_factors_short.weight", "rope_freqs.weight"
FACTORS = {LONG: np.linspace(1, 9, 16), SHORT: np.linspace(1, 2, 16)}
TOKENS = np.random.default_rng(0).integers(0, 50, 30)


@pytest.fixture(scope="module")
def write(tmp_path_factory):
    """Return what writes the same small model with other factors of its rotation."""
    folder = tmp_path_factory.mktemp("llama")
    with open_model_file(write_trunk(folder, "llama")) as file:
        metadata = dict(file.metadata)
        tensors = {name: t.array().copy() for name, t in file.tensors.items() if name != ALWAYS}
    metadata["llama.rope.scaling.type"] = "longrope"
    metadata["llama.rope.scaling.original_context_length"] = N_SHORT

    def write(name, factors):
        n_pairs = metadata["llama.rope.dimension_count"] // 2
        of_pairs = {of: values[:n_pairs].astype(np.float32) for of, values in factors.items()}
        write_model_file(folder / f"{name}.gguf", "llama", metadata, tensors | of_pairs)
        return load_model(folder / f"{name}.gguf")

    return write


def logits(model, n_ctx, backend):
    context = Context(model, n_ctx, backend=backend, threads=1)
    return context.process(Batch.of(TOKENS, outputs="all")).logits


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_factors_follow_the_context(write, backend):
    model = write("both", FACTORS)
    made = {n_ctx: logits(model, n_ctx, backend) for n_ctx in (N_SHORT, N_LONG)}
    for n_ctx, name in ((N_SHORT, SHORT), (N_LONG, LONG)):
        alone = write(name, {ALWAYS: FACTORS[name]})
        assert made[n_ctx].tobytes() == logits(alone, n_ctx, backend).tobytes()
    assert np.abs(made[N_SHORT] - made[N_LONG]).max() > 1e-3


def test_states_of_short_contexts_are_not_those_of_long_ones(write):
    model = write("both", FACTORS)
    short, long = (Context(model, n, threads=1, n_seq_max=2) for n in (N_SHORT, N_LONG))
    short.process(Batch.of(TOKENS))
    saved = short.save(0)
    short.load(1, saved)
    assert short.digest(1) == short.digest(0)
    before = long.digest(0)
    with pytest.raises(StateError, match="of another length of context"):
        long.load(0, saved)
    assert long.digest(0) == before
