"""The kit on a head with experts in every native type, on every instruction set of the machine.

Ordinarily each type meets one of the faster sets; with MTPCORE_GRID, as ``scripts/grid`` sets it,
all sets.
"""

import os

import pytest
from harness.generated import NATIVE, write_generated

from mtpcore import Sampling
from mtpcore._ext import _matmul, _plan, _sampling
from mtpcore.testing import Company, Subject, Texts, check_rows, check_texts

ISAS = _matmul.available_isas()
IS_WHOLE = "MTPCORE_GRID" in os.environ
PAIRS = [
    (kind, isa)
    for i, kind in enumerate(NATIVE)
    for j, isa in enumerate(ISAS)
    if IS_WHOLE or j == (1 + i % (len(ISAS) - 1) if len(ISAS) > 1 else 0)
]
TEXTS = [
    Texts(k=3, sampling=Sampling(temperature=0.8, seed=5), n_tokens=10, n_texts=2),
    Texts(k=2, n_tokens=10, n_texts=2, n_batch=4, draft_sampler="argmax"),
]


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("types"), {}

    def make(kind):
        if kind not in made:
            path = write_generated(folder / f"{kind}.gguf", "glm4moe", kind)
            made[kind] = Subject(f"glm4moe {kind}", str(path))
        return made[kind]

    return make


@pytest.fixture
def use():
    """Change the instruction set of every compiled module, until the test is over."""
    before = [(module, module.use_isa(ISAS[0])) for module in (_matmul, _plan, _sampling)]

    def change(isa):
        for module, _ in before:
            module.use_isa(isa)

    yield change
    for module, isa in before:
        module.use_isa(isa)


@pytest.mark.parametrize(("kind", "isa"), PAIRS)
def test_rows_and_texts(subject, use, kind, isa):
    use(isa)
    family = subject(kind)
    for company in (
        Company(chunk=7, n_batch=5, threads=2, neighbours=2),
        Company(chunk=40, threads=3),
    )[: 2 if IS_WHOLE else 1]:
        check_rows(family, company, "f16")
    for texts in TEXTS[: 2 if IS_WHOLE else 1]:
        check_texts(family, texts)
