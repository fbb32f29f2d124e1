"""An argument parser that suggests the right spelling, and knows other programs' options."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from mtpcore.cli.foreign import Foreign, Refused, translate

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["Parser"]

_NEAR = 0.8
"""How alike two spellings are where one is suggested for the other."""


class Parser(argparse.ArgumentParser):
    """Shows examples as they are written, takes no abbreviations, and suggests spellings.

    Parameters
    ----------
    commands : mapping of str to str
        Of a parser with commands: what people may type instead of one, and what to say then.
    foreign : dict of str to Foreign
        Options of other programs that are understood, or answered.
    **settings
        As ``argparse`` takes them.
    """

    def __init__(
        self,
        *,
        commands: Mapping[str, str] | None = None,
        foreign: dict[str, Foreign] | None = None,
        **settings: Any,
    ) -> None:
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **settings)
        self.commands, self._meant, self._foreign = [], commands or {}, foreign or {}

    commands: list[str]
    """The commands, where there are any."""

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse; exit with code 2 where an argument is unknown, naming the nearest known one."""
        options, unknown = self.parse_known_args(args, namespace)
        used: Parser = getattr(options, "parser", self)
        if not any(word.startswith("-") for word in unknown):
            unknown = [word for word in unknown if not used.place(word, options)]
        if unknown:
            used.refuse(unknown)
        return options

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse what is known, options of other programs in our own spelling.

        What is to be said of them is in ``said`` of the namespace.
        """
        words = list(sys.argv[1:] if args is None else args)
        known = self._option_string_actions
        try:
            words, said = translate(words, known, self._foreign)
        except Refused as error:
            self.exit(2, f"{self.prog}: {error}\n")
        for word in words:
            if self.commands and not word.startswith("-"):
                if word not in self.commands:
                    self._refuse_command(word)
                break
            if word == "--":
                break
            if self.commands and word.partition("=")[0] not in known:
                self.refuse([word])
            if re.match("-[A-Za-z][A-Za-z]", word) and word.partition("=")[0] not in known:
                self._check_joined(word)
        options, unknown = super().parse_known_args(words, namespace)
        if self._foreign:
            options.said = said
        return options, unknown

    def _check_joined(self, word: str) -> None:
        """Refuse a word that ``argparse`` would take apart: ``-ngl`` is not ``-n gl``."""
        action = self._option_string_actions.get(word[:2])
        if action is None:
            return
        try:
            if action.nargs == 0:
                raise ValueError
            self._get_value(action, word[2:])
        except (ValueError, argparse.ArgumentError):
            self.refuse([word])

    def _refuse_command(self, word: str) -> NoReturn:
        said = self._meant.get(word)
        if said is None and word.lower().endswith(".gguf"):
            said = f"did you mean {self.prog} run {word}?"
        if said is None:
            near = difflib.get_close_matches(word, self.commands, n=1, cutoff=_NEAR)
            said = f"did you mean {near[0]}?" if near else f"there are {', '.join(self.commands)}"
        self.error(f"no command {word!r}; {said}")

    def place(self, word: str, options: argparse.Namespace) -> bool:
        """Let a word be the first positional argument that was not given, or one of the last list.

        ``argparse`` takes those that may be left out to be so at the first option. Say whether
        there was a place.
        """
        for action in self._get_positional_actions():
            given = getattr(options, action.dest, word)
            if given is None or (action.nargs == "*" and isinstance(given, list)):
                try:
                    value = self._get_values(action, [word])
                except argparse.ArgumentError as error:
                    self.error(str(error))
                setattr(options, action.dest, value if given is None else [*given, *value])
                return True
        return False

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Exit with code 2 because of unknown arguments."""
        first = next((word for word in unknown if word.startswith("-")), unknown[0])
        if self.commands and first.startswith("-"):
            self.error(f"options follow a command, as in {self.prog} run {first}")
        known = [name for action in self._actions for name in action.option_strings]
        given = first.partition("=")[0].replace("_", "-")
        near = [name for name in known if name.startswith(f"{given}-")]
        long = [name for name in known if len(name) > 2]
        near = near or difflib.get_close_matches(given, long, n=1, cutoff=_NEAR)
        hint = f"; did you mean {near[0]}?" if near else ""
        self.error(f"unknown argument {first}{hint}")

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        """Write a help or an error now; a help that cannot be written is an ``OSError``."""
        if file is sys.stdout:
            print(message, end="", flush=True)
        else:
            super()._print_message(message, file)

    def error(self, message: str) -> NoReturn:
        """Exit with code 2, pointing to the help instead of a page of usage."""
        self.exit(2, f"{self.prog}: {message}\n  fix: {self.prog} --help lists what it takes\n")
