"""llama.cpp as a witness: it loads files that ``convert`` writes, and makes the same of them."""

import json
import lzma
import subprocess
import sys

import numpy as np
import pytest
from harness import t5
from harness.fixtures import DATA
from harness.published import tokenizer, write_checkpoint
from harness.witness import hear, needs_llama_cpp

from mtpcore import Batch, Context, link, load_model
from mtpcore.conversion import convert

pytestmark = needs_llama_cpp
SHAPES = {
    "1.0": t5.SHAPES["1.0"]._replace(n_layers=3),
    "1.1": t5.SHAPES["1.1"]._replace(n_buckets=32, max_distance=128, n_source=150),
    "UMT5": t5.SHAPES["UMT5"]._replace(
        gated=False, n_layers=3, n_buckets=32, max_distance=128, n_source=150
    ),
}
"""Without references: llama.cpp has one furthest distance, and as many layers in both stacks.

Its table of GELU has sixteen bits: three layers of it would be as far off as the bound.
"""
N_MORE = 140


@pytest.mark.parametrize("name", SHAPES)
def test_logits(name, tmp_path):
    """Of 1.0 llama.cpp does not scale the last state."""
    s = SHAPES[name]
    hf = write_checkpoint(tmp_path / "hf", t5.configuration(s), t5.weights(s), tokenizer(s.n_vocab))
    convert(hf, tmp_path / "model.gguf", outtype="f32")
    source = t5.source(s).tolist()
    heard = hear(tmp_path / "model.gguf", [0], N_MORE, tmp_path / "heard.npz", source)
    with load_model(tmp_path / "model.gguf") as model:
        cross = link(Context(model, 192, kv_dtype="f32", threads=1), [])
        cross.encode({0: source})
        out = cross.llm.process(Batch.of(heard.text, outputs="all"))
    wanted = heard.logits * (t5.WIDTH**-0.5 if s.tied else 1)
    assert np.abs(out.logits - wanted).max() / np.abs(wanted).max() < 1e-3


TOKENIZE = """
import sys, json, llama_cpp
from versus.peer import quiet_logs
quiet_logs()
model = llama_cpp.Llama(sys.argv[1], vocab_only=True, verbose=False)
texts = json.load(sys.stdin)
print(json.dumps([model.tokenize(t.encode(), add_bos=True, special=False) for t in texts]))
"""


def test_tokens(tmp_path):
    s = t5.SHAPES["1.1"]._replace(n_vocab=160)
    hf = write_checkpoint(tmp_path / "hf", t5.configuration(s), t5.weights(s))
    (hf / "tokenizer.json").unlink()
    pieces = lzma.decompress((DATA / "unigram" / "t5.model.xz").read_bytes())
    (hf / "spiece.model").write_bytes(pieces)
    convert(hf, tmp_path / "model.gguf", outtype="f16")
    texts = [text for text, _ in json.loads((DATA / "unigram" / "refs.json").read_text())["t5"]]
    texts = [text for text in texts if text.strip()]
    done = subprocess.run(
        [sys.executable, "-c", TOKENIZE, str(tmp_path / "model.gguf")],
        input=json.dumps(texts), capture_output=True, text=True, check=True,
        cwd=str(DATA.parents[1] / "benchmarks"),
    )  # fmt: skip
    with load_model(tmp_path / "model.gguf") as model:
        assert [model.tokenizer.encode(text) for text in texts] == json.loads(done.stdout)
