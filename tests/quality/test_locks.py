"""Locks are left by ``with`` alone, and are those that are written in C.

An exception that a signal raises comes up at the entry of a Python function, at a jump back, and
behind a call, never elsewhere (CPython 3.11 to 3.13, ``Python/ceval.c`` and ``bytecodes.c``; 3.14
enters a ``with`` by the instruction of other calls, and looks at signals behind it). ``with lock:``
looks up ``__enter__``, calls it and is within its block: one instruction, behind which no signal is
looked at. While a C lock waits, a signal ends that without the lock; at the end of the block its
``__exit__`` is called without an instruction of Python in between. So such a lock is held within
the block and nowhere else. A ``Condition``, which is Python, can be interrupted when it has the
lock and has not entered the block; so can a generator with ``contextmanager``, whose lock is held
as long as a traceback keeps the generator; so can ``acquire()`` before its ``try``. What uses these
where no signal is handled, or where nothing can be lost, is named here.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = [*(ROOT / "mtpcore").rglob("*.py"), *ROOT.glob("plugins/*/mtpcore_*/**/*.py")]
TREES = {path: ast.parse(path.read_text()) for path in SOURCES}

IN_PYTHON = {
    "Barrier", "BoundedSemaphore", "Condition", "Event", "LifoQueue", "PriorityQueue", "Queue",
    "Semaphore", "Thread", "ThreadPoolExecutor",
}  # fmt: skip
ALLOWED = {
    ("Condition", "backends/cpu/weights.py"): "taken in threads of run_all, never the main one",
    ("Event", "cli/progress.py"): "a new one for each bar, which ends with its command",
    ("Thread", "cli/progress.py"): "as its event",
    ("ThreadPoolExecutor", "lm/engine.py"): "asyncio's own way to wait for a thread",
    ("acquire", "backends/workers.py"): "locks that nobody else knows yet",
    ("acquire", "lm/engine.py"): "a lock that is waited for and never held",
}


def names(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            yield called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


def test_locks_are_written_in_c():
    found = {
        (name, path.relative_to(ROOT).as_posix().removeprefix("mtpcore/"))
        for path, tree in TREES.items()
        for name in names(tree)
        if name in IN_PYTHON or name == "acquire"
    }
    assert found == set(ALLOWED)


def test_no_lock_is_held_by_a_generator():
    held = []
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef):
                continue
            inner = list(ast.walk(node))
            gives = any(isinstance(one, ast.Yield | ast.YieldFrom) for one in inner)
            items = [item for one in inner if isinstance(one, ast.With) for item in one.items]
            if gives and any("lock" in ast.unparse(item.context_expr) for item in items):
                held.append(f"{path.name}: {node.name}")
    assert held == []
