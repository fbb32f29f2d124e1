"""llama.cpp as a witness: what it makes of the talker's file that ``convert`` writes."""

import numpy as np
import pytest
from harness import qwen_tts
from harness.published import tokenizer, write_checkpoint
from harness.witness import hear, needs_llama_cpp

from mtpcore import Batch, Context, load_model
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
