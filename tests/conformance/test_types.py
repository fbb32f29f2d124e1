"""The kit on generated models of every family in native types, on every instruction set here.

Ordinarily each type meets one of the faster sets, with GLM's head and with one of the other
families; with MTPCORE_GRID, as ``scripts/grid`` sets it, all of all.
"""

import os

import pytest
from harness.every_trunk import write_trunk
from harness.generated import NATIVE
from harness.generated_heads import DRAFTERS, OTHERS, write_drafter, write_family

from mtpcore import Sampling
from mtpcore._ext._cpu import available_isas, isa, use_isa
from mtpcore.testing import Batching, Subject, Texts, check_graphs, check_rows, check_texts

ISAS = available_isas()
IS_WHOLE = "MTPCORE_GRID" in os.environ
FAMILIES = (*OTHERS, *DRAFTERS)
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
            is_drafter = family in DRAFTERS
            trunk = "llama" if is_drafter else family
            path = write_family(folder / f"{name} target.gguf", trunk, kind)
            beside = folder / f"{name}.gguf"
            head = str(write_drafter(beside, family, kind)) if is_drafter else None
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


@pytest.mark.parametrize(
    ("family", "isa"),
    [
        (family, isa)
        for i, family in enumerate(("csm", "gemma4", "gpt_oss", "qwen3-tts", "t5"))
        for isa in (ISAS if IS_WHOLE else ISAS[-1 - i % len(ISAS) :][:1])
    ],
)
def test_graphs_of_published_weights(use, family, isa, tmp_path):
    """Those of families that are not generated: encoders, codes, memory that layers share."""
    use(isa)
    assert check_graphs(Subject(family, str(write_trunk(tmp_path, family)))) > 0
