"""The compiled modules."""

from importlib.machinery import PathFinder

if PathFinder.find_spec(f"{__name__}._plan", __path__) is None:
    raise ImportError(
        f"the compiled modules of mtpcore are not in {__path__[0]}: this is its source folder; "
        "run Python in another folder, or build here with: pip install -e ."
    )
