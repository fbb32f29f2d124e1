"""What a graph computes in long contexts alone, and contexts that are too long for it."""

import numpy as np
import pytest
from harness.every_trunk import write_trunk

from mtpcore import Batch, CapacityError, Context, StateError, load_model
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


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """Return a GPT-2 of one layer, with a table of 20 positions."""
    rng, width, n_positions = np.random.default_rng(1), 32, 20
    keys = {
        "context_length": n_positions,
        "embedding_length": width,
        "block_count": 1,
        "attention.head_count": 2,
        "attention.layer_norm_epsilon": 1e-5,
    }
    shapes = {
        "token_embd.weight": (100, width),
        "position_embd.weight": (n_positions, width),
        "output_norm.weight": (width,),
        "blk.0.attn_norm.weight": (width,),
        "blk.0.attn_qkv.weight": (3 * width, width),
        "blk.0.attn_output.weight": (width, width),
        "blk.0.ffn_norm.weight": (width,),
        "blk.0.ffn_up.weight": (4 * width, width),
        "blk.0.ffn_down.weight": (width, 4 * width),
    }
    path = tmp_path_factory.mktemp("gpt2") / "learned.gguf"
    metadata = {"general.architecture": "gpt2"} | {f"gpt2.{k}": v for k, v in keys.items()}
    tensors = {name: rng.normal(size=s).astype(np.float32) for name, s in shapes.items()}
    write_model_file(path, "gpt2", metadata, tensors)
    return load_model(path)


def test_no_context_is_longer_than_a_table_of_positions(learned):
    with pytest.raises(
        CapacityError, match=r"position_embd\.weight has as many positions"
    ) as error:
        Context(learned, 21)
    assert (error.value.got, error.value.fix) == (21, "n_ctx=20 (-c 20)")
    context = Context(learned, 20, threads=1)
    assert np.isfinite(context.process(Batch.of(TOKENS[:20])).logits).all()


def test_rows_know_their_positions(learned):
    """Without a table the logits of a token that is repeated are all the same."""
    context = Context(learned, 20, threads=1)
    made = context.process(Batch.of([7] * 20, outputs="all")).logits
    assert len(np.unique(made, axis=0)) == 20
