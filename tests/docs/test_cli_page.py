"""The page about the command line names every option, and no other."""

import re
from pathlib import Path

from mtpcore.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## mtpcore (\w+)\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL))


def help_of(capsys, *arguments):
    assert main([*arguments, "--help"]) == 0
    return capsys.readouterr().out


def commands(capsys):
    return re.findall(r"^    (\w+)(?: |$)", help_of(capsys), re.MULTILINE)


def explained(command):
    cells = re.findall(r"^\| (`-.*?) \|", SECTIONS[command], re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`(.*?)`", cell)]


def test_every_option_is_explained(capsys):
    assert commands(capsys)
    for command in commands(capsys):
        lines = re.findall(r"^  (-.*)$", help_of(capsys, command), re.MULTILINE)
        known = {name for line in lines for name in re.findall(r"(?<!\S)--?[a-z][a-z-]*", line)}
        known -= {"-h", "--help"}
        mine = explained(command)
        assert len(mine) == len(set(mine))
        assert set(mine) <= known, command
        shared = explained("run") if "options of `mtpcore run`" in SECTIONS[command] else []
        assert known <= {*mine, *shared}, command


def test_exit_codes_are_the_help_s(capsys):
    codes = re.findall(r"^  (\d+) +(.*)$", help_of(capsys), re.MULTILINE)
    assert codes
    assert all(f"| {code} | {meaning} |" in PAGE for code, meaning in codes)
