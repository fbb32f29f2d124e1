"""``mtpcore lend``: the file, and what it says of drafts before and after."""

import re

import mtpcore
from mtpcore.conversion import quantize


def test_a_demo_without_heads_gets_them_back(command, tmp_path):
    trunk, made = tmp_path / "trunk.gguf", tmp_path / "made.gguf"
    quantize("demo", trunk, outtype="f16", mtp="drop")
    code, _, err = command("lend", "demo", str(trunk), "-o", str(made))
    assert code == 0, err
    rates = re.findall(r"accepted in texts of (.*): (\d\.\d\d)", err)
    assert [name for name, _ in rates] == ["the base", "the fine-tune"]
    assert all(0.3 < float(rate) <= 1 for _, rate in rates)
    with mtpcore.load_model(made) as model:
        assert model.drafters


def test_one_with_heads_is_told_so(command, tmp_path):
    code, _, err = command("lend", "demo", "demo", "-o", str(tmp_path / "made.gguf"))
    assert code == 1
    assert "heads of its own" in err
    assert "--mtp-path" not in err
    assert not (tmp_path / "made.gguf").exists()


def test_nothing_is_measured_if_not_wanted(command, tmp_path):
    trunk, made = tmp_path / "trunk.gguf", tmp_path / "made.gguf"
    quantize("demo", trunk, outtype="f16", mtp="drop")
    code, _, err = command("lend", "demo", str(trunk), "-o", str(made), "--no-measure")
    assert code == 0
    assert "accepted" not in err
