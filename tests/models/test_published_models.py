"""Published models from packages write what llama.cpp writes, up to near ties."""

import numpy as np
import pytest
from harness.published_models import MODELS, N_TOKENS, is_installed, model_path, prompts, texts

from mtpcore import Batch, Context, load_model

NEAR = 0.15
"""How far apart two logits may be that the two programs order differently, by the spread of all.

Both round activations to eight bits: with these files each is 0.04 to 0.06 away from what float32
gives, and both agree to 0.0005 where the weights are float32.
"""

SAME = 0.95
"""Share of the tokens that are our choice, too."""


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    if not is_installed(request.param):
        pytest.skip(f"the package of {request.param} is not installed (harness.published_models)")
    with load_model(model_path(request.param)) as model:
        yield request.param, model


def test_greedy_texts_are_those_of_llama_cpp(model):
    """Token by token along llama.cpp's text: its choice is ours, or as good as ours."""
    name, loaded = model
    n_same = n_tokens = 0
    for prompt, written in zip(prompts(loaded), texts(name), strict=True):
        assert len(written) == N_TOKENS
        context = Context(loaded, n_ctx=len(prompt) + N_TOKENS)
        rows = Batch.of([*prompt, *written[:-1]], outputs="all")
        logits = context.process(rows).logits[len(prompt) - 1 :].astype(np.float64)
        spread = logits.std(1)
        logits[:, list(loaded.tokenizer.end_tokens)] = -np.inf  # llama.cpp was told to go on
        behind = logits.max(1) - logits[np.arange(N_TOKENS), written]
        assert (behind <= NEAR * spread).all()
        n_same, n_tokens = n_same + (behind == 0).sum(), n_tokens + N_TOKENS
    assert n_same >= SAME * n_tokens
