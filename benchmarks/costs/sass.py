"""Compiled kernels as instructions: their loops, the pipes that they go to, and how they wait.

``nvdisasm`` lists a kernel's machine code. It comes with the CUDA toolkit, or from PyPI as
``nvidia-cuda-nvdisasm``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import msgspec

__all__ = ["Code", "Instruction", "Pace", "disassemble", "find_disassembler", "parse", "pipe_of"]

_LINE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*);")
_LABEL = re.compile(r"\.(L_x_\d+):")
_REGISTER = re.compile(r"\b(U?R\d+|U?P\d)\b")
_PARAMETER = re.compile(r"c\[0x0\]\[0x([0-9a-f]+)\]")
_FIRST_PARAMETER = {"sm_80": 0x160, "sm_86": 0x160, "sm_89": 0x160, "sm_90": 0x210}
_NO_RESULT = (
    *("ST", "RED", "BAR", "BRA", "CALL", "EXIT", "WARPSYNC", "BSSY", "BSYNC"),
    *("LDGSTS", "LDGDEPBAR", "DEPBAR"),
)
_PIPES = {
    "tensor": ("IMMA", "HMMA"),
    "convert": ("I2F.", "F2I", "F2F", "MUFU", "I2F"),
    "load": ("LD", "ST", "SHFL", "RED", "ATOM"),
    "float": ("FADD", "FMUL", "FFMA", "HADD", "HMUL", "HFMA"),
    "multiply": ("IMAD", "IDP"),
    "control": (
        "BRA",
        "CALL",
        "EXIT",
        "BSSY",
        "BSYNC",
        "WARPSYNC",
        "BAR",
        "NOP",
        "DEPBAR",
        "LDGDEPBAR",
    ),
    "uniform": ("U", "R2UR", "S2UR", "S2R", "CS2R", "LDC"),
}
_CONSTANT = ("LDC", "ULDC")
_JUMPS = ("BRA", "CALL.REL.NOINC")
"""A call that does not come back is how some loops are left."""


class Instruction(msgspec.Struct, frozen=True):
    """One instruction; ``target`` is the number of the one that it jumps to.

    ``pipe`` carries it out; ``width`` are the registers of its result, or of what it stores.
    """

    guard: str
    name: str
    operands: str
    target: int | None
    pipe: str
    width: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]

    @property
    def macs(self) -> int:
        """Multiply-adds of an instruction for the tensor cores: 16 x 8 of as many columns."""
        return 16 * 8 * (16 if "16816" in self.name else 32)

    @classmethod
    def of(cls, guard: str, name: str, operands: str, target: int | None = None) -> Instruction:
        """Find out what an instruction reads and writes."""
        width, has_result = _width(name), not name.startswith(_NO_RESULT)
        listed = operands.split(",")
        writes = _written(listed, width) if has_result else []
        reads = _REGISTER.findall(guard)
        sizes = {} if "MMA" not in name else {0: 4, 1: 2, 2: 4} if "16832" in name else {0: 2, 2: 4}
        for number, operand in enumerate(listed[1 if has_result else 0 :]):
            is_wide = ".64" in operand or (not has_result and number and width > 1)
            for register in _REGISTER.findall(operand):
                reads += _run(register, sizes.get(number, width if is_wide else 1))
        pipe = pipe_of(name)
        return cls(guard, name, operands, target, pipe, width, tuple(reads), tuple(writes))


def _width(name: str) -> int:
    parts = name.split(".")
    if "128" in parts or "MMA" in parts[0]:
        return 4
    return 2 if {"64", "WIDE"} & {*parts} or parts[0] == "CS2R" else 1


def _written(operands: list[str], width: int) -> list[str]:
    found = _REGISTER.findall(operands[0])
    if not found:
        return []
    second = operands[1].strip() if len(operands) > 1 else ""
    is_predicate = re.fullmatch(r"U?P\d", second) is not None
    return _run(found[0], width) + ([second] if is_predicate else [])


def _run(first: str, n: int) -> list[str]:
    """Return n neighbouring registers."""
    kind, number = re.fullmatch(r"([UPR]+)(\d+)", first).groups()  # type: ignore[union-attr]
    return [f"{kind}{int(number) + i}" for i in range(n)]


def pipe_of(name: str) -> str:
    """Return the pipe of an instruction: ``alu`` where no other one is known."""
    if name.startswith("I2FP"):
        return "alu"
    for pipe in ("control", "tensor", "convert"):
        if name.startswith(_PIPES[pipe]):
            return pipe
    if name.startswith(_PIPES["uniform"]):
        return "uniform"
    for pipe in ("load", "float", "multiply"):
        if name.startswith(_PIPES[pipe]):
            return pipe
    return "alu"


class Pace(msgspec.Struct, frozen=True):
    """Cycles after which a result is there."""

    memory: float
    l2: float
    shared: float = 29
    tensor: float = 24
    convert: float = 18
    constant: float = 30
    plain: float = 4.5


class Code:
    """A kernel's instructions in their order, for an architecture."""

    def __init__(self, instructions: list[Instruction], architecture: str) -> None:
        self.instructions, self.architecture = instructions, architecture
        self._paths: dict[tuple[tuple[tuple[int, int], float], ...], list[tuple[int, float]]] = {}

    def loops(self) -> list[tuple[int, int]]:
        """Return first and last instruction of each loop, the inner ones first."""
        found = [
            (instruction.target, number)
            for number, instruction in enumerate(self.instructions)
            if instruction.target is not None and instruction.target < number
        ]
        return sorted(found, key=lambda loop: loop[1] - loop[0])

    def innermost(self) -> list[tuple[int, int]]:
        """Return the loops without another one in them."""
        loops = self.loops()
        return [
            loop
            for loop in loops
            if not any(loop[0] <= a and b <= loop[1] for a, b in loops if (a, b) != loop)
        ]

    def path(self, loops: dict[tuple[int, int], float]) -> list[tuple[int, float]]:
        """Return the instructions of a warp on its way through the loops, and how often each runs.

        A jump with a condition is taken only where there is no other way to the next of the loops,
        or to the end. ``loops`` says how often a loop is gone through; others are, once.
        """
        key = tuple(sorted(loops.items()))
        if key not in self._paths:
            self._paths[key] = self._find_path(loops)
        return self._paths[key]

    def _find_path(self, loops: dict[tuple[int, int], float]) -> list[tuple[int, float]]:
        goals = sorted({begin for begin, _ in loops})
        way = self._leading_to(goals[0], set()) if goals else None
        at, taken, seen = 0, [], set()
        reached: set[int] = set()
        while at < len(self.instructions) and at not in seen:
            seen.add(at)
            times = 1.0
            for (begin, end), n in loops.items():
                if begin <= at <= end:
                    times *= n
            taken.append((at, times))
            if at in goals:
                goals.remove(at)
                reached.add(at)
                way = self._leading_to(goals[0], reached) if goals else None
            instruction = self.instructions[at]
            if instruction.name.startswith("EXIT") and not instruction.guard:
                break
            following = [there for there in self._after(at) if there not in seen]
            at = next((there for there in following if way is None or there in way), at + 1)
        return taken

    def _after(self, at: int) -> list[int]:
        """Return what may follow an instruction, what needs no jump first."""
        instruction = self.instructions[at]
        if instruction.name.startswith("EXIT") and not instruction.guard:
            return []
        stays = instruction.target is None or bool(instruction.guard)
        stays |= "P" in instruction.operands or ".DIV" in instruction.name  # of a warp that parted
        following = [at + 1] if stays else []
        return following + ([] if instruction.target is None else [instruction.target])

    def _leading_to(self, goal: int, reached: set[int]) -> set[int]:
        """Return the instructions that lead to another one, but by the next turn of a loop."""
        before: dict[int, list[int]] = {}
        for at in range(len(self.instructions)):
            for there in {*self._after(at)} - reached:
                before.setdefault(there, []).append(at)
        found, left = {goal}, [goal]
        while left:
            for at in before.get(left.pop(), []):
                if at not in found:
                    found.add(at)
                    left.append(at)
        return found

    def counts(self, loops: dict[tuple[int, int], float]) -> Counter[str]:
        """Return how many instructions of each pipe a warp carries out."""
        found: Counter[str] = Counter()
        for at, times in self.path(loops):
            found[self.instructions[at].pipe] += times  # type: ignore[assignment]
        return found

    def until(self, at: int) -> Code:
        """Return the instructions before one, where the kernel ends."""
        return Code([*self.instructions[:at], Instruction.of("", "EXIT", "")], self.architecture)

    def body(self, loop: tuple[int, int]) -> list[Instruction]:
        """Return a loop's instructions."""
        return self.instructions[loop[0] : loop[1] + 1]

    @cached_property
    def sources(self) -> list[set[int]]:
        """Return for each instruction which of the kernel's pointers its address comes from."""
        known: dict[str, set[int]] = {}
        halves: dict[str, tuple[str, set[int]]] = {}  # what was written where a predicate holds
        first, found = _FIRST_PARAMETER[self.architecture], []
        for instruction in self.instructions:
            come = {
                (int(offset, 16) - first) // 8
                for offset in _PARAMETER.findall(instruction.operands)
                if int(offset, 16) >= first
            }
            guard = instruction.guard
            for name in instruction.reads:
                if "P" in name:  # a predicate, which brings no address
                    continue
                where, half = halves.get(name, ("", set()))
                come |= half if guard and where == guard else known.get(name, set())
            found.append(come)
            written = set() if instruction.name.startswith(("LDG", "LDS")) else come
            for name in instruction.writes:
                where, half = halves.pop(name, ("", set()))
                halves = {at: of for at, of in halves.items() if of[0].strip("!") != name}
                kept: set[int] = set()
                if guard:
                    is_other = where != guard and where.strip("!") == guard.strip("!")
                    kept = half if is_other else known.get(name, set())
                    halves[name] = guard, written
                known[name] = kept | written
        return found

    def cycles(
        self, pace: Pace, streamed: set[int], loops: dict[tuple[int, int], float], most: int = 8
    ) -> float:
        """Return how long a warp takes that has a multiprocessor to itself, in order.

        Loads from ``streamed`` pointers wait for memory, others for L2. Of a long loop ``most``
        turns are walked through, and the others take as long as the last ones.
        """
        ready: dict[str, float] = {}
        groups: list[float] = []
        open_group, now = 0.0, 0.0
        sources = self.sources
        path = [at for at, _ in self.path(loops)]
        walk = _Walk(path, loops, most)
        for at in walk:
            instruction = self.instructions[at]
            for name in instruction.reads:
                now = max(now, ready.get(name, 0.0))
            if instruction.name.startswith("DEPBAR"):
                kept = int(instruction.operands.rsplit("0x", 1)[-1], 16)
                now = max([now, *groups[: len(groups) - kept]])
            if instruction.name.startswith("MEMBAR"):  # what was written has to arrive
                now += pace.l2
            if instruction.name == "LDGDEPBAR":
                groups.append(open_group)
                open_group = 0.0
            takes = _takes(instruction, sources[at] & streamed, pace)
            if instruction.name.startswith("LDGSTS"):
                open_group = max(open_group, now + takes)
            for name in instruction.writes:
                ready[name] = now + takes
            now += max(1.0, instruction.width / 2 if instruction.pipe == "load" else 1.0)
            walk.told(at, now)
        return now + walk.skipped


class _Walk:
    """The order in which a warp carries out a path with loops."""

    def __init__(self, path: list[int], loops: dict[tuple[int, int], float], most: int) -> None:
        self.path, self.loops, self.most, self.skipped = path, loops, most, 0.0
        self._ends: dict[int, list[float]] = {}

    def __iter__(self) -> Iterator[int]:
        yield from self._part(0, len(self.path), tuple(sorted(self.loops)))

    def _part(self, begin: int, end: int, loops: Sequence[tuple[int, int]]) -> Iterator[int]:
        at = begin
        while at < end:
            number = self.path[at]
            loop = next(
                (
                    loop
                    for loop in sorted(loops, key=lambda loop: loop[0] - loop[1])
                    if loop[0] == number and loop[1] in self.path[at:end]
                ),
                None,
            )
            if loop is None:
                yield number
                at += 1
                continue
            last = self.path.index(loop[1], at) + 1
            times, inner = self.loops[loop], tuple(other for other in loops if other != loop)
            walked = min(max(round(times), 1), self.most)
            self._ends[loop[1]] = []
            for _ in range(walked):
                yield from self._part(at, last, inner)
            ends = self._ends.pop(loop[1])
            if times > walked and len(ends) > 4:
                half = len(ends) // 2
                self.skipped += (times - walked) * (ends[-1] - ends[half]) / (len(ends) - 1 - half)
            at = last

    def told(self, at: int, now: float) -> None:
        """Note when the end of a loop was reached."""
        if at in self._ends:
            self._ends[at].append(now)


def _takes(instruction: Instruction, is_streamed: object, pace: Pace) -> float:
    name = instruction.name
    if name.startswith(("LDGSTS", "LDG", "LD.E")):
        return pace.memory if is_streamed else pace.l2
    if name.startswith("ATOM"):
        return pace.l2
    if name.startswith(_CONSTANT) or name.startswith(("S2R", "S2UR")):
        return pace.constant
    if instruction.pipe == "load":
        return pace.shared
    return {"tensor": pace.tensor, "convert": pace.convert}.get(instruction.pipe, pace.plain)


def parse(listing: str, architecture: str = "sm_90") -> Code:
    """Read what ``nvdisasm -c`` lists of one kernel."""
    lines, labels = [], {}
    for line in map(str.strip, listing.splitlines()):
        if label := _LABEL.match(line):
            labels[label[1]] = len(lines)
        elif found := _LINE.match(line):
            lines.append((found[1] or "", found[2], found[3].strip()))
    instructions = []
    for guard, name, operands in lines:
        jump = re.search(r"\.(L_x_\d+)\)", operands) if name.startswith(_JUMPS) else None
        target = labels.get(jump[1]) if jump else None
        instructions.append(Instruction.of(guard, name, operands, target))
    while instructions and instructions[-1].name.startswith(("NOP", "BRA")):
        instructions.pop()  # what fills the last line of the cache
    return Code(instructions, architecture)


def find_disassembler() -> str | None:
    """Return the path of nvdisasm; None where there is none."""
    found = shutil.which("nvdisasm")
    if found is None:
        packages = Path(sysconfig.get_path("purelib")) / "nvidia"
        found = next(map(str, sorted(packages.glob("*/bin/nvdisasm"))), None)
    return found


def disassemble(cubin: bytes, architecture: str, disassembler: str) -> Code:
    """Return the instructions of the one kernel in a cubin."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [disassembler, "-c", file.name], capture_output=True, text=True, check=True
        )
    return parse(done.stdout, architecture)
