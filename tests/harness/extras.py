"""Skips tests of extras that are not installed, without the seconds that importing one takes."""

from importlib.util import find_spec

import pytest

__all__ = ["require"]


def require(*modules, extra):
    """Skip the module that calls this where one of these, which an extra brings, is not installed.

    Unlike ``pytest.importorskip`` it imports none: each process that collects the tests would.
    """
    __tracebackhide__ = True  # pytest then names the caller's line
    if not all(map(_is_installed, modules)):
        pytest.skip(f"needs the extra {extra}", allow_module_level=True)


def _is_installed(name):
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False
