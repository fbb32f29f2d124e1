"""Locks are those that are written in C, and held by compiled code: ``acts.guards.holding``.

An exception that a signal raises comes up at the entry of a Python function, at a jump back, and
after a call, never elsewhere (``Python/ceval.c`` and ``bytecodes.c``). So what Python takes can be
interrupted when it is taken and no ``try`` or ``with`` has begun: ``acquire()`` before its ``try``;
a ``Condition``, which takes its lock in Python; a generator with ``contextmanager``, whose lock is
held as long as a traceback keeps the generator; from CPython 3.14 on even ``with lock:``, which
enters by the instruction of other calls (up to 3.13 it has one of its own, after which no signal
is looked at). Compiled code takes a lock and is within its ``try`` without any of these. While a
lock waits, a signal ends that without the lock. What uses others where no signal is handled, or
where nothing can be lost, is named here.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = [*(ROOT / "mtpcore").rglob("*.py"), *ROOT.glob("plugins/*/mtpcore_*/**/*.py")]

IN_PYTHON = {
    "Barrier", "BoundedSemaphore", "Condition", "Event", "LifoQueue", "PriorityQueue", "Queue",
    "Semaphore", "Thread", "ThreadPoolExecutor",
}  # fmt: skip
ALLOWED = {
    ("Condition", "backends/cpu/weights.py"): "taken in threads of run_all, never the main one",
    ("Queue", "cluster/replica.py"): "asyncio's: one loop reads and fills it, in one thread",
    ("Event", "cli/progress.py"): "a new one for each bar, which ends with its command",
    ("Thread", "cli/progress.py"): "as its event",
    ("ThreadPoolExecutor", "lm/engine.py"): "asyncio's own way to wait for a thread",
    ("Event", "system/children.py"): "macOS's: in a process that hears no Ctrl-C",
    ("Thread", "system/children.py"): "as its event",
    ("acquire", "backends/workers.py"): "locks that nobody else knows yet",
    ("acquire", "lm/engine.py"): "a lock that is waited for and never held",
    ("with", "backends/cpu/weights.py"): "its Condition",
    ("with", "backends/workers.py"): "to wait for them: they are never taken again",
}
LOCKS = ("lock", "_settling", "_changed", "end")


def used(tree):
    """Yield what calls and blocks of a module use, by name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            yield called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        elif isinstance(node, ast.With):
            for item in node.items:
                if ast.unparse(item.context_expr).endswith(LOCKS):
                    yield "with"


def test_locks_are_held_by_compiled_code():
    found = {
        (name, path.relative_to(ROOT).as_posix().removeprefix("mtpcore/"))
        for path in SOURCES
        for name in used(ast.parse(path.read_text()))
        if name in IN_PYTHON or name in ("acquire", "with")
    }
    assert found == set(ALLOWED)
