"""Public names say what they take, give and raise: in types, and in words."""

import ast
import importlib
import inspect
import re
import sys
import textwrap
import typing
from functools import cache, cached_property

import numpy as np

from mtpcore.boundary.options import show_options
from mtpcore.errors import LinkError, MtpcoreError

DOORS = ["mtpcore", "mtpcore.plugin", "mtpcore.testing", "mtpcore.backends.base"]
SPECIAL = {"__init__", "__call__", "__getitem__", "__iter__", "__len__"}
UNTYPED = {
    "Ask.sampling": "a Sampling, which a storey above declares",
    "Config.__init__": "JSON",
    "WeightSource.packed": "each backend keeps its own kind of things there",
    "Config.get": "takes what msgspec.convert takes, and returns that",
    "Config.require": "as Config.get",
    "Config.__getitem__": "JSON, read as from a dict",
    "Fields.get": "takes what msgspec.convert takes, and returns that",
    "Fields.require": "as Fields.get",
    "LM.sampling": "fields of Sampling, which takes them as **settings",
}
"""Public names whose signature has an ``Any``, and why."""


@cache
def names():
    """Return every name of mtpcore by itself: some annotations are imported for types alone."""
    found = {"np": np}  # what aliases that are strings name
    modules = [one for name, one in sys.modules.items() if name.startswith("mtpcore")]
    for module in modules:
        for name, value in list(vars(module).items()):
            if getattr(value, "__module__", "").startswith("mtpcore"):
                found.setdefault(name, value)
    return found


def public():
    """Return (name, object) of all public classes and functions, each once."""
    found = {}
    for door in DOORS:
        module = importlib.import_module(door)
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                found.setdefault(value, name)
    return [(name, value) for value, name in found.items()]


def functions(name, value):
    """Yield (name, (function, its class)) of a function, or of a class all public ones."""
    if not inspect.isclass(value):
        yield name, (value, None)
        return
    for owner in reversed(value.__mro__):
        if not owner.__module__.startswith("mtpcore"):
            continue
        for inner, member in vars(owner).items():
            if inner.startswith("_") and inner not in SPECIAL:
                continue
            if isinstance(member, (classmethod, staticmethod)):
                member = member.__func__
            elif isinstance(member, property):
                member = member.fget
            elif isinstance(member, cached_property):
                member = member.func
            if inspect.isfunction(member) and member.__module__.startswith("mtpcore"):
                yield f"{name}.{inner}", (member, owner)


OWNED = dict(pair for name, value in public() for pair in functions(name, value))
FUNCTIONS = {name: function for name, (function, _) in OWNED.items()}
CLASSES = {name: value for name, value in public() if inspect.isclass(value)}


def any_in(hint):
    """Say whether a type says nothing somewhere; what NumPy's own types leave open is not ours."""
    if isinstance(hint, (list, tuple)):
        return any(map(any_in, hint))
    if getattr(hint, "__module__", "").startswith("numpy"):
        return False
    if typing.is_typeddict(hint):
        return any_in(list(typing.get_type_hints(hint, localns=names()).values()))
    return hint is typing.Any or any(map(any_in, typing.get_args(hint)))


def untyped(value):
    """Return the parts of a signature, or the fields of a class, that are Any."""
    hints = typing.get_type_hints(value, localns=names())
    return [
        part
        for part, hint in hints.items()
        if any_in(hint) and (part == "return" or not part.startswith("_"))
    ]


def test_no_any_in_a_signature():
    found = {name: untyped(door) for name, door in FUNCTIONS.items() if name not in UNTYPED}
    assert {name: parts for name, parts in found.items() if parts} == {}


def test_no_any_in_a_field():
    found = {f"{name}.{part}" for name in CLASSES for part in untyped(CLASSES[name])}
    assert found - set(UNTYPED) == set()


def test_an_any_is_seen():
    class Options(typing.TypedDict):
        n: list[typing.Any]

    def door(
        hidden: list[typing.Callable[..., typing.Any]],
        n: int,
        **options: typing.Unpack[Options],
    ) -> int:
        raise NotImplementedError

    assert untyped(door) == ["hidden", "options"]
    assert all(name in FUNCTIONS or name.split(".")[0] in CLASSES for name in UNTYPED)


# Docstrings

PLAIN = {
    "seq": "a sequence's number",
    "g": "the builder of a graph",
    "h": "hyper-parameters of the family",
    "inputs": "what a graph is given",
    "x": "rows, a value of a graph",
    "n": "a block's number, as in blk.{n}",
    "layer": "a block's number, as in blk.{n}",
    "positions": "the positions of a graph's rows",
    "fields": "a file's metadata",
    "config": "a checkpoint's config.json",
    "path": "of a file",
    "subject": "what is tested",
    "saved": "what save() returned",
}
"""Parameters that mean the same wherever they stand."""


def raised(function, seen=()):
    """Return the names of our errors that a function, or a helper of its module, raises itself."""
    module = inspect.getmodule(function)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except OSError:
        return set()
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            kind = getattr(module, getattr(node.exc.func, "id", ""), None)
            if inspect.isclass(kind) and issubclass(kind, MtpcoreError):
                found.add(kind.__name__)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            helper = getattr(module, node.func.id, None)
            is_own = inspect.isfunction(helper) and helper.__module__ == module.__name__
            if is_own and helper not in seen:
                found |= raised(helper, (*seen, function, helper))
    return found


def parameters(function):
    """Return the names of a function's parameters."""
    found = inspect.signature(function).parameters
    return [name for name in found if name not in ("self", "cls") and not name.startswith("_")]


def options_of(function):
    """Return the names of what a function takes by ``**options``, as its signature shows them."""
    written = inspect.unwrap(function).__code__.co_varnames
    return [name for name in parameters(function) if name not in written]


def elsewhere(function, owner):
    """Return the docstring that a function names for its options, one of the same class."""
    found = re.search(r"\*\*options\n +As in ``(\w+)``", inspect.getdoc(function))
    return inspect.getdoc(getattr(owner, found[1])) if found else ""


def lacks(name):
    """Return what the docstring of a function does not say, nor that of its class."""
    function, owner = OWNED[name]
    is_made = name.endswith(".__init__")
    doc = inspect.getdoc(owner if is_made else function)
    if not doc:
        return ["a docstring"]
    said = f"{doc} {inspect.getdoc(owner) or ''}" if owner else doc
    options = options_of(function)
    of_options = said + elsewhere(function, owner) if options else said
    found = [
        f"parameter {one}"
        for one in parameters(function)
        if one not in PLAIN and not re.search(rf"\b{one}\b", of_options if one in options else said)
    ]
    errors = raised(function)
    if errors and "Raises\n" not in doc:
        found.append(f"Raises {', '.join(sorted(errors))}")
    hints = typing.get_type_hints(function, localns=names())
    arrays = [one for one, hint in hints.items() if re.search("^(?!.*Callable).*numpy", str(hint))]
    if arrays and not re.search(r"\[[^\]]*\]|shape", said):
        found.append(f"shape of {', '.join(arrays)}")
    return found


SPOKEN = [name for name in FUNCTIONS if "__" not in name or name.endswith(".__init__")]


def test_a_docstring_says_what_is_taken_and_raised():
    assert {name: missing for name in SPOKEN if (missing := lacks(name))} == {}


PASSES_ON = {"Subject.context", "Subject.link"}
"""Functions whose options are arguments of ``Context``, which shows and documents them."""


def hides_options(function):
    """Say whether a signature leaves out the names that a TypedDict has."""
    found = inspect.signature(function).parameters.values()
    return any(one.kind is one.VAR_KEYWORD and "Unpack" in repr(one.annotation) for one in found)


def test_a_signature_shows_all_options():
    """``help`` reads it, as do the tests of what is documented and of hostile arguments."""
    assert {name for name, door in FUNCTIONS.items() if hides_options(door)} == PASSES_ON


def test_a_class_has_a_docstring():
    assert [name for name, one in CLASSES.items() if not vars(one).get("__doc__")] == []


def test_what_a_docstring_lacks_is_seen(monkeypatch):
    def door(hidden: np.ndarray, width: int) -> None:
        """Do something."""
        raise LinkError("no")

    door.__module__ = __name__
    monkeypatch.setitem(OWNED, "door", (door, None))
    assert lacks("door") == [
        "parameter hidden",
        "parameter width",
        "Raises LinkError",
        "shape of hidden",
    ]


class Options(typing.TypedDict, total=False):
    width: int
    height: int


class Maker:
    def take(self, **options: "typing.Unpack[Options]") -> None:
        """Do something with a ``width``."""

    @show_options(Options, {"width": 1, "height": 2})
    def show(self, **options: typing.Unpack[Options]) -> None:
        """Do something.

        Parameters
        ----------
        **options
            As in ``take``.
        """


def test_what_is_not_said_of_options_is_seen(monkeypatch):
    assert hides_options(Maker.take)
    assert not hides_options(Maker.show)
    assert options_of(Maker.show) == ["width", "height"]
    monkeypatch.setitem(OWNED, "Maker.show", (Maker.show, Maker))
    assert lacks("Maker.show") == ["parameter height"]
