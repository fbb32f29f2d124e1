"""``mtpcore plugins``, the help, and what all commands share."""

import json
import re
import subprocess
import sys

import pytest

import mtpcore
from mtpcore.cli import main, plugins
from mtpcore.discovery.registry import SWITCH, Plugin, describe_plugins
from mtpcore.errors import PluginError
from mtpcore.plugin import DrafterSpec, Feed, Fit


def test_what_is_installed_matches_and_needs(command):
    code, out, err = command("plugins", "-v")
    assert (code, err) == (0, "")
    for said in (
        "glm_nextn  (mtpcore",
        "drafter    glm_nextn: chain, up to 8 tokens",
        "needs    blk.{n}.nextn.eh_proj.weight",
        "reads    hidden of target, pairing next-token",
        "evidence ",
    ):
        assert said in out


def test_a_state_of_the_drafter_s_own_is_none_of_the_target_s(command, monkeypatch):
    head = Feed(slot="hidden", recycle="hidden")
    state = Feed(slot="state", taps=(), width=8, recycle="memory")
    drafter = DrafterSpec(name="d", fit=Fit(tensors=("x",)), feeds=(head, state))
    listed = [Plugin(name="d", module="d", distributions=("d 1",), drafters=(drafter,))]
    monkeypatch.setattr(plugins, "describe_plugins", lambda: listed)
    out = command("plugins", "-v")[1]
    assert re.findall("reads +(.*)", out) == [
        "hidden of target, pairing next-token",
        "its own memory of the step before",
    ]


def test_each_has_one_line(command, monkeypatch):
    code, out, err = command("plugins")
    lines = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert code == 0
    assert [*lines] == [*(plugin.name for plugin in describe_plugins()), "lookup"]
    assert lines["trunks"].startswith("trunk llama, qwen2, qwen3, qwen3moe, ")
    assert (
        lines["deepseek_mtp"]
        == "trunk deepseek2, deepseek32, glm-dsa; drafter deepseek_mtp (chain)"
    )
    assert "every model" in lines["lookup"]
    assert SWITCH not in err
    monkeypatch.setenv(SWITCH, "")
    assert f"{SWITCH} is ''" in command("plugins")[2]


def test_acceptance_is_said_where_it_is_declared(command):
    out = command("plugins", "-v")[1]
    assert "glm_nextn: chain, up to 8 tokens, first draft accepted 0." in out
    assert "0.00 to 1.00" not in out


def test_the_same_for_programs(command):
    found = json.loads(command("plugins", "--json")[1])
    named = {plugin["name"]: plugin for plugin in found["plugins"]}
    assert named.keys() == {plugin.name for plugin in describe_plugins()}
    assert named["glm_nextn"]["drafters"][0]["architectures"] == ["glm4moe"]
    assert all(p["used"] and p["distributions"] for p in named.values() if p["first_party"])


def test_broken_and_left_out_plugins_are_shown(command, monkeypatch):
    broken = PluginError("cannot be imported", where="plugin 'b'", fix="uninstall it")
    listed = [
        Plugin(name="b", module="b", distributions=("b 1",), error=broken, imported=False),
        Plugin(name="c", module="c", distributions=("c 2",)),
        Plugin(name="d", module="d", distributions=("d 3",)),
    ]
    monkeypatch.setattr(plugins, "describe_plugins", lambda: listed)
    monkeypatch.setenv(SWITCH, "d")
    for words in ((), ("-v",)):
        out = command("plugins", *words)[1]
        assert re.search("broken:? +plugin 'b': cannot be imported", out)
        assert out.count("left out") == 1
    used = {p["name"]: p["used"] for p in json.loads(command("plugins", "--json")[1])["plugins"]}
    assert used == {"b": False, "c": False, "d": True}


@pytest.mark.parametrize("name", ["run", "inspect", "bench", "plugins"])
def test_every_help_has_examples(command, name):
    code, out, _ = command(name, "--help")
    assert code == 0
    assert f"examples:\n  mtpcore {name}" in out


def test_help_lists_commands_and_exit_codes(command):
    code, out, _ = command("--help")
    assert code == 0
    assert "exit codes:" in out
    assert command()[0] == 2
    assert command("fly")[0] == 2
    assert command("--version")[1].startswith("mtpcore ")


def test_the_package_is_a_program():
    done = subprocess.run(
        [sys.executable, "-m", "mtpcore", "plugins", "--json"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert json.loads(done.stdout)["switch"] == SWITCH


def test_no_memory_is_a_message(command, glm, monkeypatch):
    def fail(*arguments, **settings):
        raise MemoryError

    monkeypatch.setattr("mtpcore.cli.session.Context", fail)
    code, _, err = command("run", glm, "-p", "x")
    assert code == 1
    assert "no memory left" in err


def test_bugs_are_not_hidden(monkeypatch, glm):
    def fail(*arguments, **settings):
        raise ZeroDivisionError

    monkeypatch.setattr(mtpcore.cli.run, "open_model", fail)
    with pytest.raises(ZeroDivisionError):
        main(["run", glm, "-p", "x"])
