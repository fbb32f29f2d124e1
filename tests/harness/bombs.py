"""Chat templates that take all time or memory: known ones, and such as a grammar composes.

``python -m harness.bombs SECONDS``, or ``python -m harness.bombs SECONDS BEGIN END`` with seeds,
prints a JSON line for each: how it ended where so much computing is allowed, how many seconds it
computed, and how much memory it took at the most, this process and the one that renders.
"""

import json
import random
import re
import resource
import sys
from datetime import datetime
from pathlib import Path
from types import ModuleType

DEEP = 40  # levels of loops or doublings


def grow(step, first="'aaaa'", n=DEEP):
    """Return a template that replaces ``ns.s`` again and again."""
    loop = f"{{% for i in range({n}) %}}{{% set ns.s = {step} %}}{{% endfor %}}"
    return f"{{% set ns = namespace(s={first}) %}}{loop}{{{{ ns.s is defined }}}}"


def nest(inside, n=9, width=99):
    """Return loops inside each other."""
    return f"{{% for i in range({width}) %}}" * n + inside + "{% endfor %}" * n


MACRO = "{% macro double(s) %}{{ s }}{{ s }}{% endmacro %}"
CALLED = "{% macro twice() %}{{ caller() }}{{ caller() }}{% endmacro %}"

BOMBS = {
    # texts that double
    "set block": "{% set s = 'aaaa' %}"
    + "{% set s %}{{ s }}{{ s }}{% endset %}" * DEEP
    + "{{ s | length }}",
    "set block with a filter": "{% set s = 'aaaa' %}"
    + "{% set s | replace('a', 'aaaa') %}{{ s }}{% endset %}" * DEEP,
    "macro": MACRO + grow("double(ns.s)"),
    "caller": CALLED + "{% call twice() %}" * DEEP + "aaaa" + "{% endcall %}" * DEEP,
    "filter block": "{% filter replace('a', 'aaaa') %}" * DEEP + "a" + "{% endfilter %}" * DEEP,
    "tilde": grow("ns.s ~ ns.s"),
    "nested tilde": "{% set s = 'a' %}{{ s " + "~ (s * 4000000) " * 400 + "}}",
    "sum of lists": grow("[ns.s, ns.s] | sum(start=[])", first="[1]"),
    "lists": grow("ns.s + ns.s", first="[1]"),
    "product of lists": grow("ns.s * 9", first="[1]"),
    "join": grow("[ns.s, ns.s] | join(ns.s)"),
    "str.join": grow("ns.s.join([ns.s, ns.s])"),
    "replace": grow("ns.s | replace('a', 'aaaaaa')"),
    "str.replace": grow("ns.s.replace('a', 'aaaaaa')"),
    "escape": "{{ ('&' * 30000000) | escape | length }}",
    "tojson": grow("ns.s | tojson", first="'\\\\\\\\'"),
    "percent": "{{ '%1000000000s' % 'a' }}",
    "str.format": "{{ '{:1000000000}'.format(1) }}",
    "str.format of a variable": "{{ '{:{}}'.format(1, 10 ** 9) }}",
    "padding": "{{ 'a'.ljust(1000000000) }}",
    "zeros": "{{ '1'.zfill(1000000000) }}",
    "tabs": "{{ ('\\t' * 100000).expandtabs(100000) }}",
    "centre": "{{ 'a' | center(1000000000) }}",
    "indent": "{{ 'a\nb' | indent(1000000000) }}",
    "indent of many lines": "{{ ('\\n' * 100000 + 'a') | indent(100000, blank=true) }}",
    "tojson with an indent": "{{ [[[1] * 1000] * 1000] | tojson(indent=100000) }}",
    "translate": grow("ns.s.translate({97: ns.s})"),
    "output": "{% set s = 'a' * 1000000 %}" + "{% for i in range(99999) %}{{ s }}{% endfor %}",
    "lines": "{{ ('a\n' * 9000000).splitlines() | length }}",
    "list of a text": "{{ ('a' * 40000000) | list | length }}",
    "codes": "{{ ('a' * 60000000) | string | upper | lower | title | capitalize | length }}",
    "refusal": "{{ raise_exception('a' * 100000000) }}",
    "refusal of many": "{{ raise_exception([[1] * 1000] * 10000) }}",
    "the clock": "{{ strftime_now('%9999999d' * 100) }}",
    # nested values, written or compared
    "nested lists": grow("[ns.s, ns.s]") + "{{ ns.s | tojson }}",
    "string of nested lists": grow("[ns.s, ns.s]") + "{{ ns.s | string | length }}",
    "output of nested lists": grow("[ns.s, ns.s]") + "{{ ns.s }}",
    "pprint of nested lists": grow("[ns.s, ns.s]") + "{{ ns.s | pprint }}",
    "comparison of nested lists": "{% set a = namespace(s=[1]) %}{% set b = namespace(s=[1]) %}"
    "{% for i in range(40) %}{% set a.s = [a.s, a.s] %}{% set b.s = [b.s, b.s] %}{% endfor %}"
    "{{ a.s == b.s }}",
    "deep list": grow("[ns.s]", n=99999) + "{{ ns.s | string | length }}",
    # numbers
    "rounding": "{{ 5 | round(-1000000000) }}",
    "rounding of a variable": "{% set n = -1000000000 %}{{ 5 | round(n) }}",
    "power": "{{ 10 ** (10 ** 8) }}",
    "powers": grow("ns.s ** 9", first="9"),
    "squares": grow("ns.s * ns.s", first="99999"),
    "digits": "{{ (9 ** 4000000) | string | length }}",
    "hexadecimal": "{{ ('f' * 40000000) | int(0, 16) | abs }}",
    "division": "{{ (7 ** 3000000) // (3 ** 1500000) }}",
    # folded while it is compiled
    "folded product": "{% if false %}{{ 'a' * 1000000000 }}{% endif %}",
    "folded power": "{% if false %}{{ 3 ** 99999999 }}{% endif %}",
    "folded rounding": "{% if false %}{{ 5 | round(-1000000000) }}{% endif %}",
    "folded sum": "{% if false %}{{ range(99999) | sum(start=9 ** 9999999) }}{% endif %}",
    "folded list": "{{ [" + "'a' * 4000000, " * 400 + "] | length }}",
    "folded again and again": "{% if false %}" + "{{ 7 ** (7 ** 7) }}" * 400 + "{% endif %}",
    "long source": "{{ x }}" * 140000,
    "long expression": "{{ 1" + "+1" * 400000 + "}}",
    "deep expression": "{{ " + "(" * 300000 + "}}",
    "deep blocks": "{% if 1 %}" * 80000,
    "comments": "{#" * 400000,
    # work
    "loops": nest("x"),
    "recursive loop": "{% for x in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "calls": "{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(40) }}",
    "lipsum": "{{ lipsum(n=99999, max=100) }}",
    "batch": "{{ [1] | batch(1000000000, 1) | list }}",
    "slice": "{{ [1] | slice(1000000000) | list | length }}",
    "groupby": nest("{{ range(9999) | groupby('real') | length }}", 2),
    "sort": nest("{{ range(99999) | sort(reverse=true) | length }}", 2),
    "unique": nest("{{ range(99999) | unique | list | length }}", 2),
    "wordwrap": nest("{{ ('a ' * 100000) | wordwrap(1) | length }}", 2),
    "striptags": nest("{{ ('<a' * 100000) | striptags | length }}", 2),
    "urlize": nest("{{ ('www.a.de(' * (9999 + i)) | urlize | length }}", 3),
    "xmlattr": nest("{{ {'a': 'b' * (999999 + i)} | xmlattr | length }}", 2),
    "search": nest("{{ ('a' * (999999 + i)).count('a' * 499999 ~ 'b') }}", 3),
    "containment": nest("{{ 'b' in 'a' * (9999999 + i) }}", 3),
    "comparison": nest("{{ 'a' * (9999999 + i) == 'a' * (9999999 + i) }}", 3),
    "cycler": "{% set c = cycler(1) %}" + nest("{{ c.next() }}"),
}
"""Without limits nearly all of them take minutes or gigabytes, here or in some version of Jinja."""


TERMS = {
    "T": "'' 'a' '%s<&' s s ns.s ns.s messages[0].role undefined (T~T) (T+T) (T*N) f(T) T[N:] "
    "(T|replace(T,T)) T.replace(T,T) T.join(L) (L|join(T)) (L|string) (L|tojson(indent=N)) "
    "(L|pprint) (N|string) (N|tojson) ('%s'%T) ('%*d'%(N,N)) T.format(T) '{:{}}'.format(N,N) "
    "T.center(N) (T|center(N)) T.zfill(N) T.expandtabs(N) T.translate({97:T}) (T|indent(N)) "
    "(T|wordwrap(N)) (T|truncate(N)) (T|escape) (T|urlencode) (T|urlize) (T|striptags) (T|upper) "
    "(T|title) (T|trim) (T|tojson) (T|reverse) ({T:T}|xmlattr) strftime_now(T) lipsum(N) "
    "(T~if~N~else~T)",
    "L": "[] [1] messages [T,N] [L,L] (L+L) (L*N) (T|list) (range(N)|list) L[N:] L[::-1] "
    "T.split('a') T.splitlines() (L|batch(N,T)|list) (L|slice(N)|list) (L|map('string')|list) "
    "(L|map('string')|unique|list) (L|map('string')|sort) (L|select('eq',T)|list) "
    "([L,L]|sum(start=L)) (messages|groupby('role')) ({'a':L,T:N}|dictsort) (L|reverse|list)",
    "N": "0 1 2 -1 9 99 9999 10000000 i (T|length) (L|length) (N+N) (N-N) (N*N) (N**N) (N//9) "
    "(N%9) (N|round(N)|int) (N|abs) (T|int) (T|int(0,16)) (T==T) (L==L) (T~in~T) (T~in~L) "
    "T.count(T) (T|wordcount) (L|map('string')|map('length')|sum)",
}
"""What gives a text (T), a list (L), a number (N), of others; ``~if~`` stands for a word."""
BLOCKS = [
    "{% for i in range(N) %}B{% endfor %}",
    "{% for i in L %}BB{% endfor %}",
    "{% for i in range(40) %}{% set ns.s = T %}{% endfor %}B",
    "{% for i in range(9999) %}{% set ns.s = T %}{% endfor %}B",
    "{% set s %}BB{{ s }}{{ s }}{% endset %}" * 20,
    "{% set s | upper %}{{ s }}B{% endset %}",
    "{% set s = T %}B",
    "{% filter replace('a', T) %}B{% endfilter %}",
    "{% if N %}B{% else %}BB{% endif %}",
    "{% if false %}{{ N }}{{ T }}{% endif %}B",
    "{% call(s) g() %}B{% endcall %}",
    "{% for i in L recursive %}{{ loop(L) if loop.depth < N }}B{% endfor %}",
]
START = """\
{%- set s = 'aaaa' %}{% set ns = namespace(s='aaaa') %}{% set i = 1 %}
{%- macro f(s) %}{{ s }}{{ s }}{% endmacro %}
{%- macro g() %}{{ caller('a') }}{{ caller('b') }}{% endmacro -%}
"""


def compose(seed):
    """Return a template of blocks inside blocks, and in them values made of values."""
    rng = random.Random(seed)
    last = {"T": "s", "L": "[1]", "N": "9", "B": "{{ s | length }}"}
    shapes = {kind: words.split() for kind, words in TERMS.items()} | {"B": [*BLOCKS, "{{ T }}"]}

    def fill(kind, depth):
        if depth == 0:
            return last[kind]
        shape = rng.choice(shapes[kind]).replace("~if~", " if ").replace("~else~", " else ")
        shape = shape.replace("~in~", " in ")
        return re.sub(r"(?<![a-z])[TLNB](?![a-z])", lambda found: fill(found[0], depth - 1), shape)

    return START + "".join(fill("B", rng.randint(2, 6)) for _ in range(2))


def import_renderer():
    """Return the module of the renderer, without the rest of the package.

    The memory that a process had before it ran another program counts as that program's, too.
    """
    root = Path(__file__).parents[2] / "mtpcore"
    for name, folder in (("mtpcore", root), ("mtpcore.gguf", root / "gguf")):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = [str(folder)]
    from mtpcore.gguf import renderer

    return renderer


def own_peak():
    """Return the most bytes that this process held; its ru_maxrss is that of whoever started it."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) << 10


def run(renderer, source):
    """Return how a template ended, and what it took."""
    from mtpcore.errors import MtpcoreError

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    renders = renderer.Renderer(source, "bomb")
    variables = {"messages": [{"role": "user", "content": "hello"}], "tools": None}
    try:
        how = f"{len(renders.render(variables, datetime(2026, 1, 2)))} characters"
    except MtpcoreError as error:
        how = f"refused: {error.got}"
    del renders  # and with it the process
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak = max(after.ru_maxrss << 10, own_peak())
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"how": how, "seconds": seconds, "peak": peak}


def main(limit, begin=None, end=None):
    renderer = import_renderer()
    renderer.MAX_SECONDS = float(limit)
    seeds = {} if begin is None else {n: compose(n) for n in range(int(begin), int(end))}
    for name, source in (seeds or BOMBS).items():
        print(json.dumps({"name": name, **run(renderer, source)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
