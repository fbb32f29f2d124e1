"""Speculative decoding for GGUF models on CPUs, with drafters as plugins.

Load a model, make a context, link a drafter, generate::

    model = mtpcore.load_model("demo")
    cross = mtpcore.link(mtpcore.Context(model))
    gen = mtpcore.Generator(cross, draft=3)
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mtpcore.names import *  # noqa: F403
    from mtpcore.names import __all__ as __all__

    __version__: str
else:
    from importlib import import_module
    from importlib.util import find_spec

    def __getattr__(name: str) -> object:
        """Import a module when it is asked for, and with the first other name all of them.

        ``import mtpcore`` alone takes no time, so that the command line can answer to Ctrl-C before
        all the rest is there.
        """
        if name == "__version__":
            return import_module("mtpcore.version").version()
        if not name.startswith("__") and find_spec(f"mtpcore.{name}") is not None:
            return import_module(f"mtpcore.{name}")
        if name == "__all__" or not name.startswith("__"):
            names = import_module("mtpcore.names")
            known = {word: getattr(names, word) for word in names.__all__}
            globals().update(known, __all__=names.__all__)
        if name not in globals():
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals()[name]
