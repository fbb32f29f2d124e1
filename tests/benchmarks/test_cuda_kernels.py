import pytest
from cuda_kernels import MOST_REGISTERS, RESULT, faults, label

from mtpcore.backends.cuda.compile import Resources
from mtpcore.backends.cuda.launch import KERNELS


def test_table_has_a_line_for_each_kernel():
    lines = RESULT.read_text().splitlines()
    for kernel in KERNELS:
        assert any(line.startswith(f"| {kernel.name} | {label(kernel)} |") for line in lines)


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
