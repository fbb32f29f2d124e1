"""A row's bits depend on its text and the model alone, whatever it is computed beside.

By default a sample in which every two values meet, of chunks and drafts some: those beside the
kernels' widths. With MTPCORE_GRID, a filter like ``kind=Q4_K,Q6_K isa=avx2`` or ``all``, every
combination that it leaves, or MTPCORE_GRID_POINTS of them; ``scripts/grid`` sets both.
"""

import math
import os
import random

import pytest
from harness.generated import FAMILIES, NATIVE
from harness.generated_heads import OTHERS
from harness.traces import BATCHINGS, Drafted, Rows, run_cases

from mtpcore._ext._cpu import available_isas
from mtpcore.testing.pairs import cover_pairs

FILTER = os.environ.get("MTPCORE_GRID", "")
POINTS = os.environ.get("MTPCORE_GRID_POINTS", "all")
SEED = int(os.environ.get("MTPCORE_GRID_SEED", "0"))
HYBRID = "qwen35"
SAMPLED = {
    "chunk": (1, 3, 8, 9, 17, 33, 40),  # each type meets all widths in tests/_ext/compare
    "k": (1, 3, 8),
    "temperature": (0.0, 1.5),
    "family": (*FAMILIES, HYBRID),  # the kit meets the others in tests/conformance/test_types.py
}

ROWS = {
    "family": FAMILIES + OTHERS,
    "kind": NATIVE,
    "kv": ("f16", "f32", "q8_0"),
    "isa": available_isas(),
    "threads": (1, 2, 3),
    "n_batch": (1, 3, 8, 37, 512),
    "repack": (True, False),
    "chunk": range(1, 41),
    "batching": BATCHINGS,
}
DRAFTED = {
    "family": ("glm4moe", HYBRID),
    "kind": NATIVE,
    "kv": ("f16", "f32", "q8_0"),
    "temperature": (0.0, 0.7, 1.5),
    "isa": available_isas(),
    "threads": (1, 2, 3),
    "n_batch": (1, 4, 512),
    "repack": (True, False),
    "k": (0, 1, 2, 3, 5, 8),
    "draft_sampler": ("coupled", "argmax"),
}

KEPT = {name: chosen.split(",") for name, _, chosen in (r.partition("=") for r in FILTER.split())}
PARTS = [kind for kind in NATIVE if kind in KEPT.get("kind", NATIVE)] if FILTER else ["every type"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("generated")


def points(factors, part):
    if not FILTER:
        return cover_pairs(
            {
                name: [v for v in values if v in SAMPLED.get(name, values)]
                for name, values in factors.items()
            }
        )
    factors = {**factors, "kind": (part,)}
    values = [
        [v for v in factors[f] if str(v) in KEPT.get(f, map(str, factors[f]))] for f in factors
    ]
    n = math.prod(map(len, values))
    if n == 0:
        pytest.skip(f"no combination fits {FILTER}")
    wanted = n if POINTS == "all" else min(n, math.ceil(int(POINTS) / len(PARTS)))
    chosen = sorted(random.Random(SEED).sample(range(n), wanted))  # equal contexts together
    return [dict(zip(factors, point_of(i, values), strict=True)) for i in chosen]


def point_of(i, values):
    """Return the i-th of all combinations; the last of its values changes first."""
    point = []
    for those in reversed(values):
        i, at = divmod(i, len(those))
        point.insert(0, those[at])
    return point


def compare(cases, plain, folder):
    """Return {case: names of what differs from the plainest way}, and all digests."""
    found = run_cases([*map(plain, cases), *cases], folder)
    different = {}
    for case in cases:
        wanted, made = found[plain(case)], found[case]
        if names := [name for name in wanted if name != "accepted" and made[name] != wanted[name]]:
            different[case] = names
    return different, found


def report(record_property, cases, factors, what):
    n = math.prod(map(len, factors.values())) // (len(NATIVE) if FILTER else 1)
    isas = ", ".join(dict.fromkeys(case.isa for case in cases))
    record_property("compared", f"{what}: {len(cases)} of {n} combinations on {isas}")


def plain_rows(case):
    return Rows(case.family, case.kind, case.kv)


def plain_text(case):
    return Drafted(case.family, case.kind, case.kv, case.temperature)


@pytest.mark.parametrize("part", PARTS)
def test_rows(part, folder, record_property):
    cases = [Rows(**point) for point in points(ROWS, part)]
    different, found = compare(cases, plain_rows, folder)
    report(record_property, cases, ROWS, f"rows, {part}")
    models = {(case.family, case.kind, case.kv) for case in cases}
    assert len({found[case]["memory"] for case in cases}) == len(models) or different
    assert different == {}


@pytest.mark.parametrize("part", PARTS)
def test_drafted_texts(part, folder, record_property):
    cases = [Drafted(**point) for point in points(DRAFTED, part)]
    different, found = compare(cases, plain_text, folder)
    report(record_property, cases, DRAFTED, f"drafted texts, {part}")
    assert different == {}
    accepted = sum(found[case]["accepted"] for case in cases)
    assert FILTER or accepted > 2 * len(cases), (
        "hardly a draft is accepted: the comparison says little"
    )
