"""The kit on generated models of every family in native types, on every instruction set here.

Ordinarily each type meets one of the faster sets, with GLM's head and with one of the other
families; with MTPCORE_GRID, as ``scripts/grid`` sets it, all of all.
"""

import os

import pytest
from harness.generated import NATIVE
from harness.generated_heads import EAGLE3, OTHERS, write_eagle3, write_family

from mtpcore import Sampling
from mtpcore._ext._cpu import available_isas, isa, use_isa
from mtpcore.testing import Batching, Subject, Texts, check_rows, check_texts

ISAS = available_isas()
IS_WHOLE = "MTPCORE_GRID" in os.environ
FAMILIES = (*OTHERS, EAGLE3)
CASES = [
    (family, kind, isa)
    for i, kind in enumerate(NATIVE)
    for j, isa in enumerate(ISAS)
    for family in ("glm4moe", *FAMILIES)
    if IS_WHOLE
    or (
        j == (1 + i % (len(ISAS) - 1) if len(ISAS) > 1 else 0)
        and family in ("glm4moe", FAMILIES[i % len(FAMILIES)])
    )
]
TEXTS = [
    Texts(k=3, sampling=Sampling(temperature=0.8, seed=5), n_tokens=10, n_texts=2),
    Texts(k=2, n_tokens=10, n_texts=2, n_batch=4, draft_sampler="argmax"),
]


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("types"), {}

    def make(family, kind):
        if (family, kind) not in made:
            name = f"{family} {kind}"
            trunk = "llama" if family == EAGLE3 else family
            path = write_family(folder / f"{name} target.gguf", trunk, kind)
            head = str(write_eagle3(folder / f"{name}.gguf", kind)) if family == EAGLE3 else None
            made[family, kind] = Subject(name, str(path), head)
        return made[family, kind]

    return make


@pytest.fixture
def use():
    """Change the instruction set until the test is over."""
    before = isa()
    yield use_isa
    use_isa(before)


@pytest.mark.parametrize(("family", "kind", "isa"), CASES)
def test_rows_and_texts(subject, use, family, kind, isa):
    use(isa)
    family = subject(family, kind)
    for batching in (
        Batching(chunk=7, n_batch=5, threads=2, neighbours=2),
        Batching(chunk=40, threads=3),
    )[: 2 if IS_WHOLE else 1]:
        check_rows(family, batching, "f16")
    for texts in TEXTS[: 2 if IS_WHOLE else 1]:
        check_texts(family, texts)
