"""Which plugins are installed and what they declare: asked once, plain data afterwards.

Plugins are found by the entry-point group ``mtpcore``; the trunks and backends that come with
mtpcore pass the same hooks. The environment variable ``MTPCORE_PLUGINS`` chooses among third-party
plugins: a list of names with commas, and empty for none.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.metadata import Distribution, EntryPoint, EntryPoints, entry_points
from typing import Any

import msgspec
import pluggy

from mtpcore.boundary.arguments import read
from mtpcore.declarations.backend import BackendSpec
from mtpcore.declarations.checks import check_backend, check_spec
from mtpcore.declarations.spec import DrafterSpec, ModelSpec, Unsupported
from mtpcore.discovery import hookspecs
from mtpcore.errors import PluginError, spell

__all__ = ["Plugin", "Registry", "describe_plugins", "load_registry", "registry"]

log = logging.getLogger("mtpcore")

SWITCH = "MTPCORE_PLUGINS"
_GROUP = "mtpcore"
_BUILT_IN = (
    EntryPoint("trunks", "mtpcore.models", "mtpcore"),
    EntryPoint("backends", "mtpcore.discovery.backends", "mtpcore"),
)
_SPECS: dict[str, tuple[type, Any]] = {
    "mtpcore_models": (ModelSpec, check_spec),
    "mtpcore_drafters": (DrafterSpec, check_spec),
    "mtpcore_backends": (BackendSpec, check_backend),
    "mtpcore_unsupported": (Unsupported, lambda spec: None),
}
"""Of each hook what it returns, and how that is checked."""


class Plugin(msgspec.Struct, frozen=True, kw_only=True):
    """One plugin, as it was found.

    ``distributions`` are the installed packages that bring it, as ``name version``; ``error`` is
    what is wrong with it, ``imported`` says whether it got as far as being asked, and ``clashes``
    whether another one has its name.
    """

    name: str
    module: str
    distributions: tuple[str, ...] = ()
    first_party: bool = False
    imported: bool = True
    clashes: bool = False
    models: tuple[ModelSpec, ...] = ()
    drafters: tuple[DrafterSpec, ...] = ()
    backends: tuple[BackendSpec, ...] = ()
    unsupported: tuple[Unsupported, ...] = ()
    error: PluginError | None = None


class Registry(msgspec.Struct, frozen=True, eq=False):
    """All plugins of this process and what they declare.

    Two are equal only if they are the same: declarations hold values of any kind.

    ``left_out`` names those that are installed and were not asked, because ``MTPCORE_PLUGINS``
    does not name them.
    """

    plugins: tuple[Plugin, ...]
    left_out: tuple[str, ...] = ()

    @property
    def models(self) -> tuple[ModelSpec, ...]:
        """Every trunk."""
        return tuple(spec for plugin in self.plugins for spec in plugin.models)

    @property
    def drafters(self) -> tuple[DrafterSpec, ...]:
        """Every drafter."""
        return tuple(spec for plugin in self.plugins for spec in plugin.drafters)

    @property
    def backends(self) -> tuple[BackendSpec, ...]:
        """Every backend: those that come with mtpcore, which are always there, and plugins'."""
        declared = (spec for plugin in self.plugins for spec in plugin.backends)
        return tuple({spec.name: spec for spec in (*_own_backends(), *declared)}.values())

    @property
    def architectures(self) -> dict[str, ModelSpec]:
        """The trunk of each architecture."""
        return {arch: spec for spec in self.models for arch in sorted(spec.fit.architectures)}

    @property
    def unsupported(self) -> dict[str, str]:
        """What architectures need that are known and that no plugin runs."""
        known = {spec.name: spec.needs for one in self.plugins for spec in one.unsupported}
        return {name: known[name] for name in sorted(known.keys() - self.architectures.keys())}

    @property
    def broken(self) -> tuple[Plugin, ...]:
        """Plugins that were left out because something is wrong with them."""
        return tuple(plugin for plugin in self.plugins if plugin.error)

    @property
    def absent(self) -> str:
        """Which installed plugins take no part, and why; empty if all do."""
        reasons = [f"{plugin.name} ({plugin.error.what})" for plugin in self.broken if plugin.error]
        return ", ".join(reasons + [f"{name} ({SWITCH})" for name in self.left_out])

    @classmethod
    def of(cls, *modules: Any) -> Registry:
        """Make a registry of modules (or other objects with hooks), without looking for any.

        Raises
        ------
        PluginError
            What is wrong with a module: a misspelt hook, one that raises or returns something else
            than declarations, two claims of one model or name; names the modules.
        """
        asked = Registry(tuple(_ask(Plugin(name=_name(m), module=_name(m)), m) for m in modules))
        for plugin in asked.plugins:
            if plugin.error:
                raise plugin.error
        return _unclaimed(asked)


@cache
def _own_backends() -> tuple[BackendSpec, ...]:
    """Return the backends that come with mtpcore."""
    entry = _BUILT_IN[1]
    return _load([entry], first_party=True).backends


@cache
def registry() -> Registry:
    """Return the registry of this process, looking for plugins once.

    Raises
    ------
    PluginError
        As ``load_registry``.
    """
    return load_registry(os.environ.get(SWITCH))


def load_registry(selected: str | None = None) -> Registry:
    """Look for plugins and ask them.

    A plugin that cannot be imported, or whose hook raises or returns no declarations, is left out
    with a warning: it must not stop others.

    Parameters
    ----------
    selected : str, optional
        Names of the third-party plugins to load, with commas; "" loads none, None all.

    Raises
    ------
    PluginError
        Two claims of one model or name, or a selected plugin that is not installed; names the
        plugins.
    """
    selected = read(selected, str | None, "no names of plugins", error=PluginError)
    entries = entry_points(group=_GROUP)
    loaded = _unclaimed(Registry(tuple(_find(entries, selected))))
    for plugin in loaded.broken:
        log.warning("%s", plugin.error)
    asked = {plugin.module for plugin in loaded.plugins}
    others = {entry.name for entry in entries if entry.value not in asked}
    return msgspec.structs.replace(loaded, left_out=tuple(sorted(others)))


def describe_plugins() -> list[Plugin]:
    """Return what is installed, broken or not, selected or not; raises nothing of a plugin's."""
    return list(_find(entry_points(group=_GROUP), None))


def _unclaimed(checked: Registry) -> Registry:
    """Return the registry; refuse one in which two plugins claim the same."""
    for plugin in checked.plugins:
        if plugin.error and plugin.clashes:
            raise plugin.error
    claims = {("backend", spec.name): spec.plugin for spec in _own_backends()}
    for plugin in checked.plugins:
        mine = [("architecture", a) for spec in plugin.models for a in spec.fit.architectures]
        mine += [("drafter", spec.name) for spec in plugin.drafters]
        mine += [("backend", spec.name) for spec in set(plugin.backends) - set(_own_backends())]
        for claim in mine:
            if claims.get(claim) == plugin.name:
                raise PluginError(
                    f"two declarations of the {claim[0]} {claim[1]!r}",
                    where=f"plugin {plugin.name!r}",
                    fix="give one of them another name, or another architecture",
                )
            if claim in claims:
                raise PluginError(
                    f"two plugins claim the {claim[0]} {claim[1]!r}",
                    where=f"plugins {claims[claim]!r} and {plugin.name!r}",
                    fix=_without(plugin.name),
                )
            claims[claim] = plugin.name
    return checked


def _without(name: str) -> str:
    return f"uninstall one, or leave {name!r} out of {SWITCH} (empty: no third-party plugins)"


def _find(installed: EntryPoints, selected: str | None) -> Iterable[Plugin]:
    """Yield the plugins, those that come with mtpcore first, each asked."""
    wanted = None if selected is None else {n.strip() for n in selected.split(",") if n.strip()}
    groups = {entry.value: [entry] for entry in _BUILT_IN}
    names = {entry.name: entry for entry in _BUILT_IN}
    clashes: list[tuple[EntryPoint, EntryPoint]] = []
    for entry in sorted(installed, key=lambda e: (e.name, e.value)):
        other = names.setdefault(entry.name, entry)
        if other.value == entry.value:
            groups.setdefault(entry.value, []).append(entry)
        else:
            clashes.append((other, entry))
    if wanted is not None and wanted - names.keys():
        raise PluginError(
            "no such plugin",
            where=SWITCH,
            wanted=", ".join(sorted(names)),
            got=", ".join(sorted(wanted - names.keys())),
            fix=f"install it or leave its name out; {SWITCH}= starts without third-party plugins",
        )
    for entries in groups.values():
        # A first-party plugin comes with mtpcore and may be installed on its own as well.
        has_own = any(_normal(_distribution(e).split()[0]) == "mtpcore" for e in entries)
        if has_own or wanted is None or wanted & {e.name for e in entries}:
            yield _load(entries, has_own)
    for other, entry in clashes:
        if wanted is None or entry.name in wanted:
            yield _clash(other, entry)


def _clash(first: EntryPoint, other: EntryPoint) -> Plugin:
    error = PluginError(
        f"two plugins are called {first.name!r}",
        where=f"distributions {_distribution(first)} and {_distribution(other)}",
        wanted="one",
        got=f"{first.value} and {other.value}",
        fix="uninstall one",
    )
    return Plugin(
        name=other.name,
        module=other.value,
        distributions=(_distribution(other),),
        clashes=True,
        error=error,
    )


def _load(entries: Sequence[EntryPoint], first_party: bool) -> Plugin:
    entry = entries[0]
    plugin = Plugin(
        name=entry.name,
        module=entry.value,
        distributions=tuple(dict.fromkeys(_distribution(e) for e in entries)),
        first_party=first_party,
    )
    try:
        module = entry.load()
    except Exception as error:  # whatever a plugin's import raises
        return msgspec.structs.replace(
            plugin,
            imported=False,
            error=PluginError(
                f"cannot be imported: {type(error).__name__}: {spell(error, str)}",
                where=f"plugin {entry.name!r} of {_distribution(entry)}",
                fix=f"update or uninstall it; {SWITCH}= starts without third-party plugins",
            ),
        )
    return _ask(plugin, module)


def _ask(plugin: Plugin, module: Any) -> Plugin:
    """Register one plugin and call its hooks; record its error if it has one."""
    try:
        return msgspec.structs.replace(plugin, **_looked_at(plugin, module))
    except PluginError as error:
        fix = f"{SWITCH}= starts without third-party plugins"
        return msgspec.structs.replace(plugin, error=error.at(f"plugin {plugin.name!r}", fix=fix))


def _looked_at(plugin: Plugin, module: Any) -> dict[str, Any]:
    try:
        return _declared(plugin, module)
    except PluginError:
        raise
    except Exception as error:  # whatever a plugin's own objects raise when they are looked at
        raise PluginError(f"raised {type(error).__name__}: {spell(error, str)}") from error


def _declared(plugin: Plugin, module: Any) -> dict[str, Any]:
    manager = pluggy.PluginManager("mtpcore")
    manager.add_hookspecs(hookspecs)
    for attribute in dir(module):
        unmarked = not hasattr(getattr(module, attribute), "mtpcore_impl")
        if attribute in _SPECS and unmarked:
            raise PluginError("hook without @hookimpl", where=attribute)
    try:
        manager.register(module, name=plugin.name)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise PluginError(
            f"no such hook: {str(error).splitlines()[-1]}", wanted=", ".join(_SPECS)
        ) from error
    if not manager.get_hookcallers(module):
        raise PluginError("no function is a hook", wanted=f"@hookimpl on {' or '.join(_SPECS)}")
    declared: dict[str, Any] = {}
    for hook, (kind, check) in _SPECS.items():
        for implementation in getattr(manager.hook, hook).get_hookimpls():
            try:
                specs = implementation.function()
            except Exception as error:  # whatever a plugin's hook raises
                raise PluginError(
                    f"the hook raised {type(error).__name__}: {spell(error, str)}", where=hook
                ) from error
            wrong = [s for s in specs if type(s) is not kind] if _is_list(specs) else [specs]
            if wrong:
                raise PluginError(
                    "the hook returned something else",
                    where=hook,
                    wanted=f"a list of {kind.__name__}",
                    got=spell(wrong[0])[:80],
                )
            for spec in specs:
                check(spec)
            _check_variants(specs)
            origin = {"plugin": plugin.name, "version": ", ".join(plugin.distributions)}
            named = tuple(msgspec.structs.replace(spec, **origin) for spec in specs)
            declared[hook.removeprefix("mtpcore_")] = named
    return declared


def _check_variants(specs: Sequence[Any]) -> None:
    """Refuse a variant of a drafter that the plugin does not offer, or that is one itself."""
    heads = {spec.name for spec in specs if not getattr(spec, "variant_of", "")}
    for spec in specs:
        head = getattr(spec, "variant_of", "")
        if head and head not in heads:
            raise PluginError(
                "a variant of no drafter of this plugin",
                where=f"{spec.name!r}: variant_of",
                wanted=", ".join(sorted(heads)) or "another drafter of this plugin",
                got=repr(head),
            )


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def _name(module: Any) -> str:
    try:
        return str(getattr(module, "__name__", type(module).__name__))
    except MemoryError:
        raise
    except Exception:  # whatever a caller's object raises
        return type(module).__name__


def _normal(name: str) -> str:
    return name.lower().replace("_", "-")


def _distribution(entry: EntryPoint) -> str:
    """Return ``name version``."""
    return _describe(entry.dist) if entry.dist else "mtpcore"


@cache
def _describe(distribution: Distribution) -> str:
    """Read the metadata once: each question for a name or a version parses all of it."""
    metadata = distribution.metadata
    return f"{metadata['Name']} {metadata['Version']}"
