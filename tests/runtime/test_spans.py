"""Spans: rows of an image that see each other, in models whose graphs say so."""

import types

import numpy as np
import pytest

from mtpcore import (
    Batch,
    BatchError,
    CapacityError,
    Context,
    Cross,
    Generator,
    Image,
    Prompt,
    Sampling,
    Video,
    load_model,
)
from mtpcore.discovery.registry import Registry
from mtpcore.gguf import write_model_file
from mtpcore.plugin import Fit, ModelSpec, Outputs, hookimpl

WIDTH, N_VOCAB = 16, 24
rng = np.random.default_rng(0)
W = {
    f"{name}.weight": rng.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)
    for name, shape in {
        "token_embd": (N_VOCAB, WIDTH),
        "q": (WIDTH, WIDTH),
        "k": (WIDTH, WIDTH),
        "v": (WIDTH, WIDTH),
        "output": (N_VOCAB, WIDTH),
    }.items()
}
PICTURE = rng.normal(size=(6, WIDTH)).astype(np.float32)
PROMPT = Prompt([1, 2], Image(PICTURE, nx=3, ny=2), [3, 4])


class Hparams:
    n_vocab, width, n_layers, n_drafter_blocks, rotary_axes = N_VOCAB, WIDTH, 1, 0, 1

    def __init__(self, fields, tensors):
        pass


def build(mask):
    def trunk(g, inputs, h):
        x = g.embed(inputs.tokens, "token_embd.weight", embeddings=True)
        for layer in range(2):  # what a row sees in the first shows after it in the second
            q, k, v = (g.split_heads(g.matmul(x, f"{name}.weight"), 2) for name in "qkv")
            y = g.attention(q, k, v, layer=layer, scale=0.5, mask=mask)
            x = g.add(x, g.merge_heads(y))
        return Outputs(logits=g.matmul(g.output_rows(x), "output.weight"))

    return trunk


def formula(prompt, sees):
    """Return the logits of all rows; row t sees the places of ``sees[t]``."""
    x = W["token_embd.weight"][np.maximum(prompt.tokens, 0)].astype(np.float64)
    if prompt.embeddings is not None:
        x = np.where(prompt.tokens[:, None] >= 0, x, prompt.embeddings)
    for _ in range(2):
        q, k, v = ((x @ W[f"{name}.weight"].T).reshape(len(x), 2, -1) for name in "qkv")
        y = np.zeros_like(q)
        for t, places in enumerate(sees):
            for head in range(2):
                scores = np.exp(0.5 * k[places, head] @ q[t, head])
                y[t, head] = scores @ v[places, head] / scores.sum()
        x = x + y.reshape(len(x), -1)
    return x @ W["output.weight"].T


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return models of one file, by the mask of their attention."""
    path = tmp_path_factory.mktemp("spans") / "model.gguf"
    write_model_file(path, "spanned", {"spanned.block_count": 1}, W)
    found = {}
    for mask in ("causal", "block", "spans"):
        spec = ModelSpec(
            name="spanned",
            fit=Fit(architectures=frozenset({"spanned"}), tensors=("token_embd.weight",)),
            hparams=Hparams,
            build=build(mask),
        )
        plugin = types.ModuleType("mtpcore_spanned")
        plugin.mtpcore_models = hookimpl(lambda spec=spec: [spec])
        found[mask] = load_model(path, plugins=Registry.of(plugin))
    return found


def open_context(models, mask="spans", backend="cpu", **settings):
    return Context(models[mask], 64, backend=backend, kv_dtype="f32", threads=1, **settings)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_the_rows_of_an_image_see_each_other(models, backend):
    sees = [range(t + 1) for t in range(len(PROMPT))]
    sees[2:8] = [range(8)] * 6
    made = open_context(models, backend=backend).process(PROMPT.batch(outputs="all")).logits
    assert np.abs(made - formula(PROMPT, sees)).max() < 1e-4
    causal = formula(PROMPT, [range(t + 1) for t in range(len(PROMPT))])
    made = open_context(models, "causal", backend).process(PROMPT.batch(outputs="all")).logits
    assert np.abs(made - causal).max() < 1e-4
    assert np.abs(causal - formula(PROMPT, sees))[2:7].max() > 0.01


def test_spans_are_the_other_masks_at_their_ends(models):
    """A span of the whole sequence is a block; without spans the mask is causal."""
    tokens = [1, 2, 3, 4, 5]
    whole = open_context(models).process(Batch(tokens, until=5, outputs="all")).logits
    block = open_context(models, "block").process(Batch(tokens, outputs="all")).logits
    assert np.array_equal(whole, block)
    plain = open_context(models).process(Batch(tokens, outputs="all")).logits
    causal = open_context(models, "causal").process(Batch(tokens, outputs="all")).logits
    assert np.array_equal(plain, causal)
    again = open_context(models, "causal").process(Batch(tokens, until=99, outputs="all")).logits
    assert np.array_equal(again, causal)  # a graph without the mask passes over them


def test_spans_do_not_depend_on_the_batch(models):
    """In parts, beside another sequence, and picture by picture: a span stays whole."""
    video = Prompt([1], Video(np.concatenate([PICTURE, -PICTURE]), nt=2, nx=3, ny=2), [2])
    wanted = open_context(models).process(video.batch(outputs="all")).logits
    sees = [range(1), *[range(7)] * 6, *[range(13)] * 6, range(14)]
    assert np.abs(wanted - formula(video, sees)).max() < 1e-4
    for n_batch in (6, 8, 13):
        context = open_context(models, n_batch=n_batch)
        assert np.array_equal(context.process(video.batch(outputs="all")).logits, wanted)
    context = open_context(models, n_seq_max=2)
    one, two = video.batch(seq=0, outputs="all"), PROMPT.batch(seq=1, outputs="all")
    turns = [(i // 4, 0, i) for i in range(len(video))]
    turns += [(i // 4, 1, len(video) + i) for i in range(len(PROMPT))]
    order = [row for *_, row in sorted(turns)]  # four of each in turn
    mixed = {
        name: np.concatenate([getattr(one, name), getattr(two, name)])[order]
        for name in ("tokens", "embeddings", "seq", "pos", "until")
    }
    rows = context.process(Batch(**mixed, outputs="all")).logits
    assert np.array_equal(rows[np.argsort(order)[: len(video)]], wanted)
    with pytest.raises(BatchError, match="one piece"):
        open_context(models, n_batch=5).process(video.batch())


def test_text_after_a_picture(models):
    """Chunks of any size, drafts or none: the same text; one that would cut a span does not."""
    found = []
    for n_batch, draft in ((64, 0), (6, 0), (7, 2)):
        cross = Cross(llm=open_context(models, n_seq_max=2, n_batch=n_batch))
        generator = Generator(cross, sampling=Sampling(seed=1), draft=draft)
        requests = [generator.add(p, max_tokens=9, logprobs=0) for p in (PROMPT, [5] * 9, PROMPT)]
        while generator.active:
            generator.step()
        found.append([(r.tokens, [one.logprob for one in r.logprobs]) for r in requests])
    assert found[0] == found[1] == found[2]
    with pytest.raises(CapacityError, match="one piece"):
        Generator(Cross(llm=open_context(models, n_batch=5))).add(PROMPT)


def test_mistakes(models):
    context = open_context(models)
    for until in ([1, 2, 4], [1, 1, 3], [0, 2, 3], [-1, 2, 3]):
        with pytest.raises(BatchError, match="span"):
            context.process(Batch([1, 2, 3], until=until))
    with pytest.raises(BatchError):
        context.process(Batch([1, 2], until=[2, 2], parent=[-1, 0]))
    with pytest.raises(BatchError):
        Batch([1, 2], until=[2])
    assert context.length(0) == 0
