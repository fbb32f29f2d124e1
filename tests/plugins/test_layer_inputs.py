"""The rows that EAGLE heads read of the trunks: the input of layer i.

The witness is the model cut off before layer i, a file of its own: its state before the final norm.
Behind the last layer that is the state of the whole model.
"""

import numpy as np
import pytest
from harness import csm, gemma4, gpt_oss, qwen_tts, t5
from harness.fixtures import model_file, references
from harness.published import tokenizer, write_checkpoint
from harness.sound_checkpoints import write_sound

from mtpcore import Batch, Context, link, load_model
from mtpcore.conversion import convert
from mtpcore.discovery.registry import describe_plugins
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


def published(family):
    """Return configuration, tensors and size of the vocabulary of a small random checkpoint."""
    if family == "gemma4":
        s = gemma4.SHAPES["embeddings by layer, sharing"]
        return gemma4.configuration(s), gemma4.published(s, gemma4.weights(s)), gemma4.N_VOCAB
    if family == "gpt_oss":
        s = gpt_oss.SHAPES["plain experts"]
        return gpt_oss.configuration(s), gpt_oss.published(s, gpt_oss.weights(s)), gpt_oss.N_VOCAB
    if family == "t5":
        s = t5.SHAPES["1.1"]
        return t5.configuration(s), t5.weights(s), t5.N_VOCAB
    made = {"csm": csm, "qwen3-tts": qwen_tts}[family]
    return made.configuration(), made.weights(), made.N_TEXT


SOUND = {
    "llama": "llama with experts",
    "qwen2": "qwen2",
    "qwen3": "qwen3, tied",
    "qwen3moe": "qwen3 with some experts",
    "deepseek2": "V3, YaRN",
    "glm4moe": "glm",
    "mimo": "mimo",
    "mimo2": "mimo2",
    "qwen35": "qwen3.5",
    "qwen35moe": "qwen3.5 with experts",
    "qwen3next": "qwen3-next",
}
EVERY = sorted(spec.name for p in describe_plugins() if p.first_party for spec in p.models)


@pytest.mark.parametrize("family", EVERY)
def test_what_leaves_the_last_layer_would_enter_one_more(family, tmp_path):
    if family in SOUND:
        write_sound(tmp_path / "hf", SOUND[family])
    else:
        config, tensors, n_vocab = published(family)
        write_checkpoint(tmp_path / "hf", config, tensors, tokenizer(n_vocab))
    convert(tmp_path / "hf", tmp_path / "model.gguf", outtype="f32")
    with load_model(tmp_path / "model.gguf") as model:
        n = model.hparams.n_layers
        taps = [f"layer_input:{n - 1}", f"layer_input:{n}", "residual"]
        cross = link(Context(model, 64, kv_dtype="f32", taps=taps), [])
        if "encoder" in cross.contexts:
            cross.encode({0: [5, 6, 7]})
        out = cross.llm.process(Batch.of(np.arange(1, 9), outputs="none"))
        before, entered, left = (out.tap(tap).copy() for tap in taps)
    assert np.array_equal(entered, left)
    assert not np.allclose(entered, before, atol=1e-3)
