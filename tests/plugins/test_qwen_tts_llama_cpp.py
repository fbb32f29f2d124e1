"""llama.cpp as a witness: what it makes of the files that ``convert`` writes."""

import numpy as np
import pytest
from harness import qwen_tts, qwen_tts_sound
from harness.fixtures import DATA
from harness.published import save_tensors, tokenizer, write_checkpoint
from harness.witness import hear, needs_llama_cpp
from harness.witness_sound import needs_library, speak

from mtpcore import Batch, Context, Sampling, link, load_model
from mtpcore.conversion import convert

pytestmark = needs_llama_cpp
N_CODES = 2048
"""llama.cpp knows no talker with another number of first codes: 3072, marks included."""
CLOSE = {"f32": 2e-4, "f16": 2e-2}
"""How far logits may be apart; ggml rounds to F16 what it multiplies by a matrix in F16."""


@pytest.mark.parametrize("outtype", CLOSE)
def test_logits_of_first_codes(tmp_path, outtype):
    """Of rows of text, then of the codes that llama.cpp finds most probable."""
    config, weights = (make(n_codes=N_CODES) for make in (qwen_tts.configuration, qwen_tts.weights))
    write_checkpoint(tmp_path / "hf", config, weights, tokenizer(qwen_tts.N_TEXT))
    convert(tmp_path / "hf", tmp_path / "model.gguf", outtype=outtype)
    heard = hear(tmp_path / "model.gguf", [3, 4, 5, 6, 7, 8], 24, tmp_path / "heard.npz")
    assert np.isneginf(heard.logits[:, : qwen_tts.N_TEXT]).all()
    assert (heard.text[6:] >= qwen_tts.N_TEXT).all()
    with load_model(tmp_path / "model.gguf") as model:
        context = Context(model, 64, kv_dtype="f32", threads=1)
        logits = context.process(Batch.of(heard.text, outputs="all")).logits
    wanted = heard.logits[:, qwen_tts.N_TEXT :]
    assert np.abs(logits - wanted).max() < CLOSE[outtype]
    for i, code in enumerate(logits.argmax(1)[5:-1]):  # the same choice, or a near tie
        best = wanted[5 + i].max()
        assert best - wanted[5 + i][code] < 2 * CLOSE[outtype]


@needs_library
@pytest.mark.parametrize("outtype", ["f32", "f16"])
def test_it_speaks_with_the_companion(tmp_path, outtype):
    """Its codes are ours; its sound and its voice are what the package makes of these tensors.

    Rows of a voice are as large as 117.
    """
    n = qwen_tts_sound.N_CODEBOOKS
    config = qwen_tts.configuration(n_codes=N_CODES, n_codebooks=n)
    config["talker_config"]["code_predictor_config"]["rope_theta"] = 1e6  # it knows no other
    weights = qwen_tts.weights(n_codes=N_CODES, n_codebooks=n) | qwen_tts_sound.voice()
    write_checkpoint(tmp_path / "hf", config, weights, tokenizer(qwen_tts.N_TEXT))
    (tmp_path / "hf" / "speech_tokenizer").mkdir()
    codec = qwen_tts_sound.codec(n_codes=N_CODES)
    save_tensors(tmp_path / "hf" / "speech_tokenizer" / "model.safetensors", codec)
    convert(tmp_path / "hf", tmp_path / "model.gguf", outtype=outtype)
    with load_model(tmp_path / "model.gguf") as model:
        cross = link(Context(model, 64, kv_dtype="f32", threads=1))
        out = cross.llm.process(Batch.of([3, 4, 5, 6, 7, 8]))
        first, hidden, frames = [], [], []
        for _ in range(6):
            hidden.append(out.tap("hidden")[-1])
            frames.append(cross.frame([0], Sampling.greedy())[0])
            first.append(frames[-1][0])
            batch = Batch([-1], codes=frames[-1:], pos=cross.llm.length(0))
            out = cross.llm.process(batch)
    given = {"first": np.array(first), "hidden": np.array(hidden)}
    given |= {"codes": qwen_tts_sound.codes(), "heard": qwen_tts_sound.heard()}
    np.savez(tmp_path / "given.npz", **given)
    found = speak(
        tmp_path / "model.gguf",
        tmp_path / "mmproj-model.gguf",
        tmp_path / "given.npz",
        tmp_path / "found.npz",
    )
    assert np.array_equal(found.codes, frames)
    with np.load(DATA / "qwen_tts" / "sound.npz") as file:
        assert np.abs(found.sound - file["sound"]).max() < 2e-2  # of 0.69; its kernels are F16
        assert np.abs(found.voice - file["voice"]).max() < {"f32": 1e-4, "f16": 0.2}[outtype]
