"""A row's bits depend on its text and the model alone, whatever it is computed beside.

By default a sample in which every two values meet, of chunks and drafts some: those beside the
kernels' widths.
``scripts/grid`` sets MTPCORE_GRID and so compares MTPCORE_GRID_POINTS combinations drawn from the
full grid, or from the part of it that a filter like ``kind=Q4_K isa=avx2`` leaves.
"""

import math
import os
import random

import pytest
from harness.generated import FAMILIES, NATIVE
from harness.generated_heads import OTHERS
from harness.traces import COMPANIES, Drafted, Rows, run_cases

from mtpcore._ext._matmul import available_isas
from mtpcore.testing.pairs import cover_pairs

FILTER = os.environ.get("MTPCORE_GRID", "")
N_POINTS = int(os.environ.get("MTPCORE_GRID_POINTS", "2000"))
SEED = int(os.environ.get("MTPCORE_GRID_SEED", "0"))
SAMPLED = {
    "chunk": (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33, 40),
    "k": (0, 1, 3, 8),
    "family": FAMILIES,  # the kit meets the others in tests/conformance/test_types.py
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
    "company": COMPANIES,
}
DRAFTED = {
    "family": ("glm4moe",),
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("generated")


def points(factors):
    if not FILTER:
        return cover_pairs(
            {
                name: [v for v in values if v in SAMPLED.get(name, values)]
                for name, values in factors.items()
            }
        )
    kept = dict(part.split("=") for part in FILTER.split() if "=" in part)
    values = [[v for v in factors[f] if str(v) == kept.get(f, str(v))] for f in factors]
    if not all(values):
        pytest.skip(f"no combination fits {FILTER}")
    n = math.prod(map(len, values))
    chosen = random.Random(SEED).sample(range(n), min(n, N_POINTS))
    return [dict(zip(factors, point_of(i, values), strict=True)) for i in chosen]


def point_of(i, values):
    """Return the i-th of all combinations."""
    point = []
    for those in values:
        i, at = divmod(i, len(those))
        point.append(those[at])
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
    n = math.prod(map(len, factors.values()))
    isas = ", ".join(dict.fromkeys(case.isa for case in cases))
    record_property("compared", f"{what}: {len(cases)} of {n} combinations on {isas}")


def plain_rows(case):
    return Rows(case.family, case.kind, case.kv)


def plain_text(case):
    return Drafted(case.family, case.kind, case.kv, case.temperature)


def test_rows(folder, record_property):
    cases = [Rows(**point) for point in points(ROWS)]
    different, found = compare(cases, plain_rows, folder)
    report(record_property, cases, ROWS, "rows")
    models = {(case.family, case.kind, case.kv) for case in cases}
    assert len({found[case]["memory"] for case in cases}) == len(models) or different
    assert different == {}


def test_drafted_texts(folder, record_property):
    cases = [Drafted(**point) for point in points(DRAFTED)]
    different, found = compare(cases, plain_text, folder)
    report(record_property, cases, DRAFTED, "drafted texts")
    assert different == {}
    accepted = sum(found[case]["accepted"] for case in cases)
    assert FILTER or accepted > 2 * len(cases), (
        "hardly a draft is accepted: the comparison says little"
    )
