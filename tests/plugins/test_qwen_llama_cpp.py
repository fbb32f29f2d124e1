"""llama.cpp as a witness: of files that ``convert`` writes of hybrids it makes what transformers
makes of their checkpoints, and what mtpcore makes of them.

Both comparisons are needed: wrong weights are the same to both engines that read the file.
"""

import numpy as np
import pytest
from harness import qwen
from harness.fixtures import DATA, checkpoint, references
from harness.published import tokenizer, write_checkpoint
from harness.witness import hear, needs_llama_cpp

from mtpcore import Batch, Context, Generator, Sampling, link, load_model
from mtpcore.conversion import convert

pytestmark = needs_llama_cpp
SHAPES = {
    **qwen.SHAPES,
    # llama.cpp knows no Qwen3-Next with a layer that has no experts: this one has no references.
    "grouped": qwen.SHAPES["grouped"]._replace(dense_layers=()),
}
REFERENCES = ["qwen35moe-17", "qwen35-16"]
N_MORE = 24
CLOSE = {"f32": 1e-4, "f16": 5e-3}
"""How far logits may be apart, over the largest; with F16 those of the median token.

ggml rounds activations to F16 before a product with a matrix in F16, mtpcore does not. What that
makes of a token differs: where two experts are nearly equal another one may be chosen.
"""
outtypes = pytest.mark.parametrize("outtype", CLOSE)


def check_close(found, wanted, outtype):
    apart = np.abs(found - wanted).max(1) / np.abs(wanted).max()
    assert (apart.max() if outtype == "f32" else np.median(apart)) < CLOSE[outtype]


def compare(folder, given, expected, outtype, tmp_path):
    """Compare logits and greedy texts of a checkpoint's file; return how much of the text.

    ``expected`` are the checkpoint's logits f32[len(given), n_vocab], where they are known.
    """
    path = tmp_path / "model.gguf"
    convert(folder, path, outtype=outtype, mtp_type=outtype)
    heard = hear(path, given, N_MORE, tmp_path / "heard.npz")
    if expected is not None:
        check_close(heard.logits[: len(given)], expected, outtype)
    with load_model(path) as model:
        context = Context(model, 160, kv_dtype="f32", threads=1)
        out = context.process(Batch.of(heard.text, outputs="all"))
        check_close(out.logits, heard.logits, outtype)
        context = Context(model, 160, kv_dtype="f32", threads=1)
        generator = Generator(link(context), sampling=Sampling.greedy(), draft=3)
        text = list(generator.generate(given, max_tokens=N_MORE, ignore_eos=True))
    differ = np.flatnonzero(text != heard.text[len(given) :])
    if not len(differ):
        return N_MORE
    two = np.sort(heard.logits[len(given) - 1 + differ[0]])[-2:]
    tie = 2 * CLOSE[outtype] * np.abs(heard.logits).max()
    assert two[1] - two[0] < tie, "another token, and no near tie"
    return int(differ[0])


@outtypes
@pytest.mark.parametrize("name", SHAPES)
def test_random_hybrids(name, outtype, tmp_path):
    s = SHAPES[name]
    tensors = qwen.published(s, qwen.weights(s))
    write_checkpoint(tmp_path / "hf", qwen.configuration(s), tensors, tokenizer(qwen.N_VOCAB))
    with np.load(DATA / "qwen" / "refs.npz") as refs:  # of weights in float32
        is_known = s == qwen.SHAPES[name] and outtype == "f32"
        expected = refs[f"{name}/logits"] if is_known else None
    compare(tmp_path / "hf", qwen.tokens().tolist(), expected, outtype, tmp_path)


@outtypes
@pytest.mark.parametrize("name", REFERENCES)
def test_reference_models(name, outtype, tmp_path):
    refs = references(name)
    prompt, expected = refs["prompts"][0].tolist(), refs["logits"][0]
    assert compare(checkpoint(name), prompt, expected, outtype, tmp_path) > 5
