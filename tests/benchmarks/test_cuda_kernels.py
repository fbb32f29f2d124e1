import pytest
from cuda_kernels import MOST_REGISTERS, RESULT, digits, faults, label

from mtpcore.backends.cuda.compile import ARCHITECTURES, Resources
from mtpcore.backends.cuda.launch import KERNELS


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_table_has_what_this_very_kernel_takes(kernel):
    """Its text is the one that was compiled; `python benchmarks/cuda_kernels.py` does it again."""
    begin, end = f"| {kernel.name} | {label(kernel)} | ", f" | {digits(kernel)} |"
    (line,) = (each for each in RESULT.read_text().splitlines() if each.startswith(begin))
    assert line.endswith(end)
    *registers, shared, spilled = map(int, line.removeprefix(begin).removesuffix(end).split(" | "))
    assert len(registers) == len(ARCHITECTURES)
    for taken in registers:
        assert not [*faults(kernel, Resources(taken, shared, spilled, ""))]


@pytest.mark.parametrize(
    ("taken", "said"),
    [
        (Resources(40, 1024, 0, ""), ""),
        (Resources(MOST_REGISTERS + 1, 0, 0, ""), "129 registers"),
        (Resources(40, 1 << 15, 0, ""), "32768 bytes of shared memory"),
        (Resources(40, 0, 8, ""), "8 bytes spilled"),
        (Resources(40, 0, 0, "unused"), "warnings: unused"),
    ],
)
def test_what_is_over_the_budget_is_said(taken, said):
    assert "; ".join(faults(KERNELS[0], taken)) == said
