"""Gemma 3n: what its files and checkpoints say is read, or refused by name."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from harness.published import tokenizer, write_checkpoint
from harness.published_families import N_VOCAB, known, tensors, tokens

from mtpcore import Batch, Context, load_model
from mtpcore.conversion import convert
from mtpcore.errors import ModelFileError
from mtpcore.gguf import open_model_file

FAMILY = known()["Gemma3nForCausalLM"]
WIDTH, N_LAYERS = (FAMILY["config"][name] for name in ("hidden_size", "num_hidden_layers"))


def converted(folder, outtype="f32", **said):
    """Convert the small checkpoint, with other settings; return the file."""
    config = FAMILY["config"] | said
    folder.mkdir(exist_ok=True)
    write_checkpoint(folder / "hf", config, tensors(FAMILY["shapes"]), tokenizer(N_VOCAB))
    convert(folder / "hf", folder / "model.gguf", outtype=outtype)
    return folder / "model.gguf"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"altup_correct_scale": False}, "altup_correct_scale"),
        ({"activation_sparsity_pattern": [0.95]}, "activation_sparsity_pattern has 1 entries"),
        ({"activation_sparsity_pattern": [1.0] * N_LAYERS}, "activation_sparsity"),
        ({"num_kv_shared_layers": N_LAYERS}, "no layer of the kind of layer 0"),
        ({"hidden_activation": "silu"}, "hidden_activation"),
        ({"altup_active_idx": 1}, "altup.active_idx"),
    ],
)
def test_settings_that_no_graph_computes_with_are_refused(tmp_path, said, words):
    with pytest.raises(ModelFileError, match=words):
        load_model(converted(tmp_path, **said)).program()


def test_small_matrices_keep_their_types(tmp_path):
    with open_model_file(converted(tmp_path, "q8_0")) as file:
        types = {
            name: GGMLQuantizationType(tensor.type).name for name, tensor in file.tensors.items()
        }
    assert types["blk.0.altup_correct_coef.weight"] == types["blk.0.altup_predict_coef.weight"]
    assert types["blk.0.altup_predict_coef.weight"] == "F32"
    for name in ("altup_proj", "altup_unembd_proj", "blk.0.laurel_l", "per_layer_model_proj"):
        assert types[f"{name}.weight"] == "F16"
    assert types["blk.0.ffn_gate.weight"] == "Q8_0"


def test_rows_count_as_token_0_in_the_second_table(tmp_path):
    """A row in a token's place is not scaled, and its layers read what they have of token 0."""
    path = converted(tmp_path)
    with open_model_file(path) as file:
        table = file.tensors["token_embd.weight"].array()
    rows = np.float32(WIDTH**0.5) * table[:1]

    def logits(batch):
        with load_model(path) as model:
            return Context(model, n_ctx=16, kv_dtype="f32").process(batch).logits

    wanted = logits(Batch.of([0]))
    assert np.allclose(logits(Batch(embeddings=rows)), wanted, atol=1e-5)
    assert not np.allclose(logits(Batch.of([1])), wanted, atol=1e-2)


def test_gates_are_cut_where_the_file_says(tmp_path):
    """A layer of which the file says -inf keeps its gates as they are."""
    cut = converted(tmp_path / "cut", activation_sparsity_pattern=[0.5] + [0.0] * (N_LAYERS - 1))
    whole = converted(tmp_path / "whole", activation_sparsity_pattern=[0.0] * N_LAYERS)
    found = []
    for path in (cut, whole):
        with load_model(path) as model:
            program = model.program()
            assert sum(node.op == "gaussian_topk" for node in program.nodes) == (path == cut)
            context = Context(model, n_ctx=16, kv_dtype="f32")
            found.append(context.process(Batch.of(tokens(), outputs="all")).logits)
    assert not np.allclose(*found, atol=1e-2)
