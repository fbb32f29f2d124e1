"""The container file says what the command, the package and the server have; none is built here."""

import json
import re
import tomllib
from pathlib import Path

import httpx2
from harness.served import serving

import mtpcore
from mtpcore.cli.main import _parser

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Containerfile").read_text("utf-8")


def words_of(instruction):
    (found,) = re.findall(rf"^{instruction} (.+)$", TEXT, re.MULTILINE)
    return json.loads(found.removeprefix("CMD "))


def test_its_options_are_those_of_the_command():
    _, *before = words_of("ENTRYPOINT")
    (shown,) = re.findall(r"^#   podman run .* mtpcore (.+)$", TEXT, re.MULTILINE)
    for words in (words_of("CMD"), shown.split()):
        options = _parser().parse_args([*before, *words])
        assert options.parser.prog == "mtpcore serve"
        assert options.host == "0.0.0.0"
        assert str(options.port) in re.findall(r"^EXPOSE (\d+)$", TEXT, re.MULTILINE)
        assert f"-p {options.port}:{options.port}" in TEXT


def test_its_health_is_a_route_of_the_server():
    url = httpx2.URL(re.search(r"urlopen\('([^']+)'\)", words_of("HEALTHCHECK")[-1])[1])
    assert f"EXPOSE {url.port}\n" in TEXT
    with mtpcore.LM("demo", n_ctx=50, draft=0, threads=1) as lm, serving(lm) as address:
        assert httpx2.get(f"{address}{url.path}").status_code == 200


def test_it_installs_what_there_is():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = re.search(r'"/source\[(.+?)\]"', TEXT)[1].split(",")
    assert {"serve", *extras} <= {*project["optional-dependencies"]}
    images = re.findall(r"^FROM \S+:(\d+)\.(\d+)-slim", TEXT, re.MULTILINE)
    least = tuple(map(int, project["requires-python"].removeprefix(">=").split(".")))
    assert len(images) == 2
    assert len({*images}) == 1
    assert tuple(map(int, images[0])) >= least
    left_out = (ROOT / ".containerignore").read_text("utf-8").split()
    assert not {"mtpcore", "plugins", "setup.py", "pyproject.toml"} & {*left_out}
