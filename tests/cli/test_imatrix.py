"""``mtpcore imatrix``: importance matrices, spelled as llama-imatrix has it."""

import re

import pytest

from mtpcore.conversion.importance_file import read_sums


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "text"
    path.write_text(" ".join(f"word {i} and {i * i}\n" for i in range(60)))
    return path


ASKED = ("-c", 32, "--chunks", 3, "-t", 1)


def test_what_it_writes_is_what_quantize_reads(command, glm, text, tmp_path):
    code, out, err = command("imatrix", glm, text, "-o", tmp_path / "a.gguf", *ASKED)
    assert code == 0, err
    assert re.search(r"^perplexity \d+\.\d{4}, of the second half of each chunk$", out)
    assert re.search(r"wrote .*a\.gguf, .* kB: 52 matrices, 3 chunks\n", err)
    assert "saw no rows, and get equal weights" in err
    found = read_sums(tmp_path / "a.gguf")
    assert "blk.4.nextn.eh_proj.weight" in found.sums
    assert "output.weight" not in found.sums
    quantised = command(
        *("quantize", glm, tmp_path / "q.gguf", "--outtype", "q4_0"),
        *("--imatrix", tmp_path / "a.gguf"),
    )
    assert quantised[0] == 0
    assert "no weights" not in quantised[2]


def test_llama_imatrix_s_spelling(command, glm, text, tmp_path):
    out = tmp_path / "a.dat"
    code, said, err = command(
        *("imatrix", "-m", glm, "-f", text, "--output-file", out, "--output-format", "dat"),
        *("--no-ppl", "--process-output", "--from-chunk", 1, "-ofreq", 2, "-ngl", 99, *ASKED),
    )
    assert (code, said) == (0, "")
    assert "-ngl does nothing here" in err
    found = read_sums(out)
    assert (found.form, found.n_chunks) == ("dat", 3)
    assert "output.weight" in found.sums
    # A text may come last, after other options.
    again = command("imatrix", "-m", glm, "-o", tmp_path / "b", "--no-mtp", "-v", *ASKED, text)
    assert again[0] == 0, again[2]
    assert "blk.4.nextn.eh_proj.weight" in again[2]
    assert not any(name.startswith("blk.4.") for name in read_sums(tmp_path / "b").sums)


def test_texts_stand_anywhere(command, glm, text, tmp_path):
    made = []
    for given in ((glm, "-t", 1, text, text), ("-t", 1, glm, text, text), (glm, text, text)):
        assert command("imatrix", *given, "-c", 32, "--no-ppl", "-o", tmp_path / "a")[0] == 0
        made.append((tmp_path / "a").read_bytes())
        (tmp_path / "a").unlink()
    assert len({*made}) == 1


def test_files_alone_are_added_up_or_shown(command, glm, text, tmp_path):
    command("imatrix", glm, text, "-o", tmp_path / "a.gguf", *ASKED)
    both = ("--in-file", tmp_path / "a.gguf", "--in-file", tmp_path / "a.gguf")
    code, out, err = command("imatrix", *both, "-o", tmp_path / "b.gguf")
    assert (code, out) == (0, "")
    assert "52 matrices, 6 chunks" in err
    code, out, _ = command("imatrix", "--in-file", tmp_path / "b.gguf", "--show-statistics")
    lines = out.splitlines()
    assert code == 0
    assert len(lines) == 53
    assert re.match(r"matrix +sum +least +most +mean", lines[0])
    assert any(line.startswith("blk.4.nextn.eh_proj.weight ") for line in lines)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("imatrix", "model.gguf"), "give TEXT"),
        (("imatrix", "-m", "model.gguf"), "give TEXT"),
        (("imatrix", "-f", "text"), "give one model"),
        (("imatrix", "--in-file", "a", "--in-file", "b", "--show-statistics"), "of one --in-file"),
        (("imatrix", "m", "t", "--lora", "x"), "--lora:"),
        (("imatrix", "m", "t", "-c", "1"), "wanted a whole number >= 2"),
    ],
)
def test_arguments_that_do_not_do(command, given, words):
    code, out, err = command(*given)
    assert (code, out) == (2, "")
    assert words in err
