"""An argument parser that suggests the right spelling of a misspelt option."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["Parser"]


class Parser(argparse.ArgumentParser):
    """Shows examples as they are written, takes no abbreviations, and suggests spellings."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **settings)

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse; exit with code 2 where an argument is unknown, naming the nearest known one."""
        options, unknown = self.parse_known_args(args, namespace)
        used: Parser = getattr(options, "parser", self)
        if len(unknown) == 1 and not unknown[0].startswith("-"):
            unknown = used.place(unknown[0], options)
        if unknown:
            used.refuse(unknown)
        return options

    def place(self, word: str, options: argparse.Namespace) -> list[str]:
        """Let a word be the first positional argument that was not given; return it if none is.

        ``argparse`` takes those that may be left out to be so at the first option.
        """
        for action in self._get_positional_actions():
            if getattr(options, action.dest, word) is None:
                try:
                    setattr(options, action.dest, self._get_values(action, [word]))
                except argparse.ArgumentError as error:
                    self.error(str(error))
                return []
        return [word]

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Exit with code 2 because of unknown arguments."""
        first = next((word for word in unknown if word.startswith("-")), unknown[0])
        known = [name for action in self._actions for name in action.option_strings]
        near = difflib.get_close_matches(first.split("=")[0], known, n=1)
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
