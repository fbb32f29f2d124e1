"""Batches of 1 to 40 rows on each instruction set: the kernels' tiles and all their remainders."""

import numpy as np
import pytest
from harness.generated import N_VOCAB
from harness.generated_heads import write_family

from mtpcore import Batch, Context, load_model
from mtpcore._ext._cpu import available_isas, use_isa

MOST = 40


@pytest.fixture(scope="module", params=["llama", "qwen35"])
def model(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("generated") / "model.gguf"
    with load_model(write_family(path, request.param, "Q8_0")) as model:
        yield model


@pytest.fixture
def _isa_as_before():
    before = use_isa("base")
    yield
    use_isa(before)


@pytest.mark.usefixtures("_isa_as_before")
def test_a_row_has_the_same_bits_in_a_batch_of_any_size(model, record_property):
    """The first rows of a text together, against each of them alone on the first set."""
    tokens = np.random.default_rng(0).integers(0, N_VOCAB, MOST)
    isas = available_isas()
    use_isa(isas[0])
    llm = Context(model, 64, n_seq_max=2, kv_dtype="f32", threads=1, taps=["hidden"])
    rows, digests = [], []
    for place, token in enumerate(tokens):
        output = llm.process(Batch.of([token], pos=place))
        rows.append((output.logits[0], output.tap("hidden")[0]))
        digests.append(llm.digest(0))
    wanted = [np.stack(parts) for parts in zip(*rows, strict=True)]
    for isa in isas:
        use_isa(isa)
        for n in range(1, MOST + 1):
            output = llm.process(Batch.of(tokens[:n], seq=1, outputs="all"))
            for made, known in zip((output.logits, output.tap("hidden")), wanted, strict=True):
                assert np.array_equal(made, known[:n]), f"{isa}, {n} rows"
            assert llm.digest(1) == digests[n - 1], f"{isa}, {n} rows"
            llm.remove(1)
    done = f"rows, {model.architecture}: every batch of 1 to {MOST} on {', '.join(isas)}"
    record_property("compared", done)
