"""Each architecture that llama.cpp's generator writes: the same logits, or a reason in words."""

import zlib

import numpy as np
import pytest
from harness import published_families
from harness.architectures import (
    N_ROWS,
    NAMES,
    architecture_of,
    header,
    logits,
    size_of_vocabulary,
    tokens,
    write_model,
)
from harness.published import tokenizer, write_checkpoint

from mtpcore import Batch, Context, load_model
from mtpcore.conversion import convert
from mtpcore.discovery.registry import registry
from mtpcore.errors import MtpcoreError
from mtpcore.testing import Batching, Subject, Texts, check_graphs, check_rows, check_texts

REFUSED = {
    "grovemoe-moe": "groups of one expert",  # of which llama.cpp computes another thing
    "hrm_text-dense": "blk.2.attn_q.scale",  # scales of further passes, which have no matrices
    "mpt-dense": "blk.0.ffn.act.scales",  # divisors of activations
    "refact-moe": "experts, with which llama.cpp does not compute",
    "mimo2-moe": "blk.0.ffn_gate.weight",  # dense matrices beside experts, which are not used
    "qwen3tts-dense": "the rest of the model is in another file",
}
"""Files of families that run, and what the error names."""
INSTEAD = {
    "grovemoe-moe": "GroveMoeForCausalLM",
    "hrm_text-dense": "HrmTextForCausalLM",
    "mpt-dense": "MptForCausalLM",
}
"""Published models in place of files that are refused: ``tests/conversion`` holds their logits."""
RUN = [
    name
    for name in NAMES
    if name not in REFUSED and architecture_of(header(name)) in registry().architectures
]
DEFINED = [name for name in RUN if zlib.crc32(name.encode()) % 8 == 0]
"""Files whose every graph is compared with its definition, too, which takes seconds each."""
N_CTX = 512
"""Places of llama.cpp's context: some models compute otherwise in shorter ones."""
NEAR = 1e-5
"""Mean square of the differences, beside that of the logits: what other orders of sums explain."""
LESS_NEAR = {"gemma3n-dense": 2e-4}
"""The same where 25 layers, of which ten keep a twentieth of their gates, make much of little: with
llama.cpp's rounding of GELU to half precision here, too, it is 1.5e-6."""


def test_the_witness_is_there():
    assert len(NAMES) >= 128


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_llama_cpp(name, tmp_path):
    """Of the last rows of a prompt, and of those that llama.cpp writes after it."""
    head = header(name)
    path = write_model(head, tmp_path / "model.gguf")
    if name not in RUN:
        refused = REFUSED.get(name, "architecture needs|no plugin knows")
        with pytest.raises(MtpcoreError, match=refused):
            Context(load_model(path), n_ctx=64)
        return
    wanted = logits(name).astype(np.float64)
    written = wanted[N_ROWS - 1 : -1].argmax(1).tolist()
    model = load_model(path)
    longest = model.program().limit or (N_CTX, "")
    context = Context(model, n_ctx=min(N_CTX, longest[0]), kv_dtype="f32", threads=1)
    prompt = tokens(size_of_vocabulary(head))
    found = [context.process(Batch.of(prompt, outputs="all")).logits[-N_ROWS:]]
    for token in written:
        found.append(context.process(Batch.of([token], pos=context.length(0))).logits)
    error = np.square(np.concatenate(found) - wanted).mean()
    assert error < LESS_NEAR.get(name, NEAR) * np.square(wanted).mean()


@pytest.fixture
def subject(request, tmp_path):
    path = tmp_path / "model.gguf"
    if name := INSTEAD.get(request.param):
        family = published_families.known()[name]
        weights = published_families.tensors(family["shapes"])
        words = tokenizer(published_families.N_VOCAB)
        write_checkpoint(tmp_path / "hf", family["config"], weights, words)
        convert(tmp_path / "hf", path, outtype="f32")
    else:
        write_model(header(request.param), path)
    return Subject(request.param, path, drafter="lookup")


@pytest.mark.parametrize("subject", [*RUN, *INSTEAD], indirect=True)
def test_rows_and_texts_do_not_depend_on_others(subject):
    """A row's bits are those that it has alone, and a text's tokens those without drafts."""
    check_rows(subject, Batching(chunk=5, neighbours=2, threads=2, n_tokens=40))
    check_texts(subject, Texts(n_texts=2, n_tokens=24))


@pytest.mark.parametrize("subject", [*DEFINED, *INSTEAD], indirect=True)
def test_graphs_are_their_definition(subject):
    assert check_graphs(subject) > 0
