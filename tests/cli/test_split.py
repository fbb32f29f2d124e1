"""``mtpcore split`` and ``merge``, and ``quantize --keep-split``."""

import pytest


def test_there_and_back(command, glm, tmp_path):
    asked = "split", glm, tmp_path / "x.gguf", "--split-max-size"
    code, out, err = command(*asked, "1M", "--dry-run")
    assert code == 0
    planned = [line.split(",")[0] for line in out.splitlines()]
    assert list(tmp_path.iterdir()) == []
    code, out, err = command(*asked, "1m")
    assert (code, out) == (0, "")
    assert planned == sorted(map(str, tmp_path.iterdir()))
    assert err.count("wrote ") == len(planned) > 1
    code, _, err = command("quantize", planned[0], tmp_path / "q.gguf", "--outtype", "q4_0",
                           "--keep-split")  # fmt: skip
    assert code == 0
    assert f"wrote {tmp_path}/q-00001-of-0000{len(planned)}.gguf, " in err
    code, _, err = command("merge", planned[0], tmp_path / "whole.gguf")
    assert code == 0
    texts = [
        command("run", path, "-p", "def", "-n", 4, "--temp", 0)[1]
        for path in (glm, planned[0], tmp_path / "whole.gguf")
    ]
    assert len({*texts}) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--split-max-size", "5"), "wanted a size as 500M or 40G"),
        (("--split-max-size", "0M"), "wanted a size"),
        (("--split-max-tensors", "0"), "wanted a whole number >= 1"),
        (("--split-max-tensors", "3", "--split-max-size", "1M"), "not allowed with"),
    ],
)
def test_limits_that_are_none(command, glm, tmp_path, words, said):
    code, _, err = command("split", glm, tmp_path / "x", *words)
    assert code == 2
    assert said in err
