"""The compiled modules, which share one file: the C library is linked, and its state kept, once.

Python looks for each module in a file of its name; a finder that is asked first knows better.
"""

import sys
from importlib.machinery import ExtensionFileLoader, ModuleSpec, PathFinder
from importlib.util import spec_from_file_location

MODULES = (
    *(
        "_cpu",
        "_cutting",
        "_dlpack",
        "_draft",
        "_encode",
        "_fetch",
        "_fma",
        "_guard",
        "_joining",
        "_lookup",
    ),
    *("_matmul", "_pace", "_plan", "_rows", "_sampling", "_states", "_strings"),
)


class NativeFinder:
    """Finds the modules of this package in the file that all of them were linked into."""

    def __init__(self, file: str) -> None:
        self.file = file

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return where a module is; None for everything but `MODULES`."""
        package, _, module = name.rpartition(".")
        if package != __name__ or module not in MODULES:
            return None
        return spec_from_file_location(name, self.file, loader=ExtensionFileLoader(name, self.file))


_native = PathFinder.find_spec(f"{__name__}._native", __path__)
if _native is None or _native.origin is None:
    raise ImportError(
        f"the compiled modules of mtpcore are not in {__path__[0]}: this is its source folder; "
        "run Python in another folder, or build here with: pip install -e ."
    )
sys.meta_path.insert(0, NativeFinder(_native.origin))
