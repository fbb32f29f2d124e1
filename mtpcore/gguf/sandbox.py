"""A Jinja sandbox whose loops, calls, texts and numbers are bounded.

Jinja's own sandbox keeps a template from Python's internals; it does not keep it from taking all
time or memory. This one counts every step of a loop and every call, and refuses what makes a long
text or number of short ones. It bounds what a careless or damaged template can do; who runs files
of an enemy should render in a process that can be ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["MAX_STEPS", "MAX_TEXT", "compile_template"]

MAX_TEXT = 4 << 20  # characters of any text
MAX_STEPS = 1 << 17  # of all loops and calls together
MAX_INDENT = 64

_FILTERS = (
    "abs attr capitalize count d default dictsort e escape first float groupby int items join last "
    "length list lower map max min reject rejectattr replace reverse round safe select selectattr "
    "sort string sum title trim unique upper"
)
_GLOBALS = ("range", "dict", "namespace")
_TEXT_METHODS = (
    "capitalize count endswith find index isalnum isalpha isascii isdecimal isdigit islower "
    "isnumeric isspace istitle isupper join lower lstrip partition removeprefix removesuffix "
    "replace rfind rindex rpartition rsplit rstrip split splitlines startswith strip swapcase "
    "title upper"
)


def compile_template(source: str) -> Template:
    """Compile a template for one rendering: its steps are counted from here.

    Raises
    ------
    jinja2.TemplateError
        If the source is malformed.
    """
    sandbox = _Sandbox()
    tree = sandbox.parse(source)
    for loop in list(tree.find_all(nodes.For)):
        loop.iter = _through("_steps", loop.iter)
    for parent in list(tree.find_all(nodes.Node)):
        for name, child in list(parent.iter_fields()):
            if isinstance(child, nodes.Concat):
                setattr(parent, name, _through("_bounded", child))
            elif isinstance(child, list):
                child[:] = [
                    _through("_bounded", c) if isinstance(c, nodes.Concat) else c for c in child
                ]
    tree.set_environment(sandbox)
    code = sandbox.compile(tree)
    template: Template = Template.from_code(sandbox, code, sandbox.make_globals(None))
    return template


def _through(name: str, node: Any) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Generation(Extension):
    """Accepts the tag by which some templates mark what the assistant said."""

    tags = {"generation"}  # noqa: RUF012, as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    _text_methods = frozenset(_TEXT_METHODS.split())
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        self.filters = {name: self.filters[name] for name in _FILTERS.split()} | {
            "tojson": _to_json,
            "join": _join,
            "replace": _replace,
            "indent": _indent,
            "_steps": self._take_steps,
            "_bounded": _bounded,
        }
        self.globals = {name: self.globals[name] for name in _GLOBALS}
        self.n_steps = 0

    def wrap_str_format(self, value: Any) -> None:
        """Offer no ``str.format``: its widths have no bounds."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Allow on texts what does not pad or format."""
        if isinstance(obj, str) and attr not in self._text_methods:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Count the call; send the methods that make texts longer through bounded ones."""
        __self.count(1)
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str) and name in ("join", "replace"):
            return _join(args[0], owner) if name == "join" else _replace(owner, *args)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse results that outgrow the bounds, before they are made."""
        if operator == "**" or (operator == "%" and isinstance(left, str)):
            raise TemplateError(f"the operator {operator} is not available")
        if operator == "*":
            for sized, times in ((left, right), (right, left)):
                if hasattr(sized, "__len__") and len(sized) * times > MAX_TEXT:
                    raise TemplateError(f"a product longer than {MAX_TEXT}")
        return _bounded(super().call_binop(context, operator, left, right))

    def count(self, n: int) -> None:
        self.n_steps += n
        if self.n_steps > MAX_STEPS:
            raise TemplateError(f"more than {MAX_STEPS} steps")

    def _take_steps(self, items: Iterable[Any]) -> list[Any]:
        taken = list(items)
        self.count(len(taken))
        return taken


def _bounded(value: Any) -> Any:
    if hasattr(value, "__len__") and len(value) > MAX_TEXT:
        raise TemplateError(f"a text longer than {MAX_TEXT} characters")
    if isinstance(value, int) and abs(value) >= 1 << 64:
        raise TemplateError("a number of more than 64 bits")
    return value


def _join(items: Iterable[Any], separator: str = "", attribute: str | None = None) -> str:
    if attribute is not None:
        items = [item[attribute] for item in items]
    texts = [str(item) for item in items]
    if sum(map(len, texts)) + len(separator) * len(texts) > MAX_TEXT:
        raise TemplateError(f"a text longer than {MAX_TEXT} characters")
    return separator.join(texts)


def _replace(text: Any, old: str, new: str, count: int = -1) -> str:
    whole = str(text)
    n_places = whole.count(old) if count < 0 else min(count, whole.count(old))
    if len(whole) + n_places * len(new) > MAX_TEXT:
        raise TemplateError(f"a text longer than {MAX_TEXT} characters")
    return whole.replace(old, new, count)


def _indent(text: str, width: int = 4, first: bool = False, blank: bool = False) -> str:
    if not isinstance(width, int) or not 0 <= width <= MAX_INDENT:
        raise TemplateError(f"an indentation of more than {MAX_INDENT}")
    pad, lines = " " * width, str(text).split("\n")
    rest = [pad + line if line or blank else line for line in lines[1:]]
    return "\n".join([pad + lines[0] if first else lines[0], *rest])


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as chat templates expect it: Unicode as it is, nothing escaped for HTML."""
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii,
        indent=None if indent is None else min(int(indent), MAX_INDENT),
        separators=separators,
        sort_keys=sort_keys,
    )
    parts, length = [], 0
    for part in encoder.iterencode(value):
        parts.append(part)
        length += max(len(part), 8)  # so that many small parts are not cheap
        if length > MAX_TEXT:
            raise TemplateError(f"JSON longer than {MAX_TEXT} characters")
    return "".join(parts)
