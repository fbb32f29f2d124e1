"""``mtpcore doctor``: ten lines at most, the same as JSON."""

import json

import mtpcore
from mtpcore.cli import machine


def test_lines_and_json(command, monkeypatch):
    monkeypatch.setattr(machine, "_WATCHED", 0.01)
    monkeypatch.setattr(machine, "_MOST", 64 << 20)
    code, out, err = command("doctor")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert 6 <= len(lines) <= 10
    told = json.loads(command("doctor", "--json")[1])
    assert [one["name"] for one in told] == [line.split("  ")[0] for line in lines]
    by_name = {one["name"]: one for one in told}
    assert by_name["threads"]["said"] in out


def test_an_instruction_set_that_is_none(command, monkeypatch):
    def refuse():
        raise mtpcore.BackendError("no such set")

    monkeypatch.setattr("mtpcore.cli.doctor.check_environment", refuse)
    code, out, err = command("doctor")
    assert (code, out) == (1, "")
    assert "no such set" in err
