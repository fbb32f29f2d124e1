"""``mtpcore convert`` and ``mtpcore quantize``."""

import json
import subprocess
import sys
import time

import pytest
from harness import lfm2
from harness.fixtures import checkpoint
from harness.published import small_config, small_tensors, write_checkpoint

import mtpcore
from mtpcore.cli.progress import count_bytes
from mtpcore.cli.terminal import spell_bytes


def size(path):
    return path.stat().st_size


def test_from_a_checkpoint_to_text(command, tmp_path):
    """The whole way: convert, quantise, generate, with drafts and without."""
    whole, small = tmp_path / "model.gguf", tmp_path / "small.gguf"
    code, out, err = command("convert", checkpoint("glm-11"), whole)
    assert (code, out, err) == (0, "", f"mtpcore: wrote {whole}, {spell_bytes(size(whole))}\n")
    code, out, err = command("quantize", whole, small, "--outtype", "q8_0")
    assert (code, out, err) == (0, "", f"mtpcore: wrote {small}, {spell_bytes(size(small))}\n")
    assert small.stat().st_size < 0.8 * whole.stat().st_size
    texts = [
        command(
            "run", path, "-p", "def read(", "-n", 24, "--temp", 0, "--draft", draft, "--ignore-eos"
        )[1]
        for path in (whole, small)
        for draft in (0, 3)
    ]
    assert texts[0] == texts[1]
    assert texts[2] == texts[3]
    assert len(texts[0]) > 24


def test_response_templates(command, tmp_path):
    """The checkpoint's own, another one, the family's, or none."""
    own, other = ({"start_anchor": mark, "fields": {"content": {}}} for mark in ("<a>", "<b>"))
    config = small_config()
    folder = write_checkpoint(tmp_path / "model", config, small_tensors(config))
    settings = folder / "tokenizer_config.json"
    assert not settings.exists()
    settings.write_text(json.dumps({"response_template": own}), "utf-8")
    in_file, out = tmp_path / "other.json", tmp_path / "model.gguf"
    in_file.write_text(json.dumps(other), "utf-8")

    def write(*options):
        code, _, err = command("convert", folder, out, *options)
        if code:
            return err
        text = mtpcore.load_model(out).metadata.get("tokenizer.chat_response_template")
        return text and json.loads(text)

    assert write() == own
    assert write("--response-template-file", in_file) == other
    assert write("--response-template", "none") is None
    before = out.read_bytes()
    assert "declares no response template" in write("--response-template", "family")
    assert "no response template" in write("--response-template", "{}")
    assert out.read_bytes() == before


def test_the_response_template_of_a_family(command, tmp_path):
    shape = lfm2.Shape()
    folder = write_checkpoint(tmp_path / "lfm2", lfm2.configuration(shape), lfm2.weights(shape))
    out = tmp_path / "lfm2.gguf"
    assert command("convert", folder, out, "--response-template", "family")[0] == 0
    with mtpcore.load_model(out) as model:
        found = json.loads(model.metadata["tokenizer.chat_response_template"])
        assert found == json.loads(model.spec.response_template)


def test_parts(command, tmp_path):
    trunk, head = tmp_path / "trunk.gguf", tmp_path / "head.gguf"
    code, _, err = command("convert", checkpoint("glm-11"), trunk, "--mtp", "drop")
    assert code == 0
    assert err.splitlines() == [
        "mtpcore: left out: 42 tensors (--mtp drop)",
        f"mtpcore: wrote {trunk}, {spell_bytes(size(trunk))}",
    ]
    assert command("convert", checkpoint("glm-11"), head, "--mtp", "only")[0] == 0
    run = ("run", trunk, "-p", "def", "-n", 8, "--temp", 0, "--drafter", "glm_nextn")
    assert command(*run)[0] == 1
    assert "drafts by glm_nextn" in command(*run, "--mtp-path", head)[2]


def test_parts_of_a_file(command, glm, tmp_path):
    trunk, head = tmp_path / "trunk.gguf", tmp_path / "head.gguf"
    code, out, err = command("quantize", glm, trunk, "--outtype", "q8_0", "--mtp", "drop")
    assert (code, out) == (0, "")
    assert err.splitlines() == [
        "mtpcore: left out: 21 tensors (--mtp drop)",
        f"mtpcore: wrote {trunk}, {spell_bytes(size(trunk))}",
    ]
    options = ("--outtype", "q8_0", "--mtp-type", "q8_0", "--mtp", "only", "-v")
    code, _, err = command("quantize", glm, head, *options)
    assert code == 0
    assert "left out: blk.0.attn_q.weight (--mtp only)" in err
    run = ("-p", "def", "-n", 8, "--temp", 0, "--draft", 2)
    assert command("run", trunk, *run, "--mtp-path", head)[1] == command("run", glm, *run)[1]


def test_types_are_options(command, tmp_path):
    path = tmp_path / "model.gguf"
    given = ("--outtype", "Q4_0", "--mtp-type", "F32")  # in any case
    assert command("convert", checkpoint("glm-11"), path, *given)[0] == 0
    with mtpcore.load_model(path) as model:
        assert model.tensors["blk.1.attn_q.weight"].type_name == "Q4_0"
        assert model.tensors["blk.4.attn_q.weight"].type_name == "F32"


def test_what_is_left_out_is_said_on_request(command, tmp_path):
    _, out, err = command("convert", checkpoint("glm-11"), tmp_path / "m", "--mtp", "drop", "-v")
    assert out == ""
    assert "left out: model.layers.4.enorm.weight (--mtp drop)" in err


def test_a_dry_run_says_types_and_sizes(command, tmp_path):
    code, out, err = command(
        *("quantize", "demo", tmp_path / "a.gguf", "--outtype", "q5_1", "--dry-run"),
        *("--tensor-type", "ffn_down=q4_0", "--output-tensor-type", "F16"),
    )
    assert (code, [*tmp_path.iterdir()]) == (0, []), err
    *lines, total = out.splitlines()
    kinds = {line.split()[0]: line.split("  ")[1:] for line in lines}
    assert "Q8_0 to Q4_0" in " ".join(kinds["blk.1.ffn_down_exps.weight"])
    assert "Q8_0 to F16" in " ".join(kinds["output.weight"])
    assert total.endswith("bits a weight")


def test_errors_are_for_people(command, tmp_path):
    code, out, err = command("convert", tmp_path, tmp_path / "model.gguf")
    assert (code, out) == (1, "")
    assert "config.json: cannot read the file" in err
    code, _, err = command("quantize", "demo", tmp_path / "model.gguf")
    assert code == 2
    assert "--outtype" in err
    code, _, err = command("convert", tmp_path, tmp_path / "x", "--outtype", "q9_k")
    assert code == 2
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_called_after_the_folder(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_checkpoint(tmp_path / "Small-1B", small_config(), small_tensors(small_config()))
    assert command("convert", "Small-1B", "--outtype", "Q8_0")[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["Small-1B", "Small-1B-q8_0.gguf"]


@pytest.mark.parametrize(
    ("given", "what", "fix"),
    [
        ("model.gguf", "a model file already", "run it: mtpcore run model.gguf"),
        ("model.gguf", "a model file already", "mtpcore quantize model.gguf"),
        ("hf/model.safetensors", "a file, not the folder", "give its folder: hf"),
        ("nowhere", "no such folder", "give the folder of a published model"),
        ("a/b/c", "no such folder", "give the folder of a published model"),
    ],
)
@pytest.mark.parametrize("out", [(), ("out.gguf",)])
def test_what_is_no_folder_is_told_what_to_do(
    command, tmp_path, monkeypatch, given, what, fix, out
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "model.safetensors").write_bytes(b"")
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    code, _, err = command("convert", given, *out)
    assert code == 1
    assert what in err.replace("\n", " ")
    assert fix in err.replace("\n", " ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "model.gguf"]


@pytest.mark.parametrize("terminal", [True, False])
def test_the_bar_shows_on_terminals_only(monkeypatch, capsys, terminal):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setattr("mtpcore.cli.progress._DELAY", 0)
    monkeypatch.setattr("mtpcore.cli.progress._REDRAWN", 0.01)
    with count_bytes("writing") as report:
        report(10, 100)
        time.sleep(0.3)
        report(100, 100)
    shown = capsys.readouterr().err
    assert ("writing" in shown) == terminal


@pytest.mark.parametrize("path", ["/", ".", "a\0b"])
def test_a_path_that_cannot_be_written(command, tmp_path, path):
    write_checkpoint(tmp_path / "hf", small_config(), small_tensors(small_config()))
    for arguments in (("convert", tmp_path / "hf"), ("quantize", "demo", "--outtype", "f16")):
        code, out, err = command(*arguments[:2], path, *arguments[2:])
        assert (code, out) == (1, "")
        assert err.startswith("mtpcore: ")
        assert err.count("fix:") <= 1
        assert "Traceback" not in err
    assert [one.name for one in tmp_path.iterdir()] == ["hf"]


def test_no_room(tmp_path):
    """A limit on the size of files stands for a disk that is full."""
    folder = write_checkpoint(tmp_path / "hf", small_config(), small_tensors(small_config()))
    limit = "import resource as r, sys; r.setrlimit(r.RLIMIT_FSIZE, (9000, 9000))"
    program = f"{limit}; from mtpcore.cli import main; sys.exit(main(sys.argv[1:]))"
    arguments = ["convert", str(folder), str(tmp_path / "model.gguf")]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "cannot write the file; got File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["hf"]
