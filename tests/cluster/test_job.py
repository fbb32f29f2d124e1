"""Texts of all rows of files: what is written, when it is stopped, and what is refused."""

import json
import subprocess
import sys
import textwrap

import pytest
from harness.extras import require

import mtpcore
from mtpcore.cluster import write_texts
from mtpcore.cluster.rows import seed_of

pyarrow = pytest.importorskip("pyarrow", reason="needs the extra ray")
parquet = pytest.importorskip("pyarrow.parquet")
require("ray", extra="ray")
pytestmark = pytest.mark.filterwarnings("default")  # Ray's own are not ours to mend

OPTIONS = {"max_tokens": 6, "ignore_eos": True}
JOB = {"model": "demo", "options": OPTIONS, "seed": 5, "batch_size": 4, "progress": False}


@pytest.fixture(scope="module")
def alone():
    """An LM that writes each text by itself."""
    with mtpcore.LM("demo", n_ctx=100, threads=1) as lm:
        yield lm


def rows_of(n):
    notes = [f"2020-01-0{1 + i % 9}\u2028" for i in range(n)]  # no date, and no end of a line
    return [{"id": i, "prompt": f"x{i} = ", "note": notes[i]} for i in range(n)]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")


def read_lines(folder):
    files = [path.read_text("utf-8").split("\n") for path in folder.glob("*.jsonl")]
    rows = [json.loads(line) for lines in files for line in lines if line]
    return {row["id"]: row for row in rows}, len(rows)


def check(found, n_lines, rows, alone):
    assert n_lines == len(rows) == len(found)
    for row in rows:
        text = alone.generate(row["prompt"], seed=seed_of(5, row["id"]), **OPTIONS).text
        written = {"text": text, "finish_reason": "length", "n_tokens": 6, "error": None}
        assert found[row["id"]] == {**row, **written}


def test_a_job_writes_the_text_of_each_row_once(ray, tmp_path, alone):
    rows, out = rows_of(10), tmp_path / "out"
    write_lines(tmp_path / "rows.jsonl", rows)
    done = write_texts(tmp_path / "rows.jsonl", out, lm={"n_ctx": 100}, **JOB)
    assert (done.rows, done.already, done.written, done.failed, done.tokens) == (10, 0, 10, 0, 60)
    check(*read_lines(out), rows, alone)
    assert len([*out.glob("texts-*.jsonl")]) == 3


@pytest.mark.many_processes
def test_a_job_that_is_called_again_writes_what_is_missing(ray, tmp_path, alone):
    rows, out = rows_of(10), tmp_path / "out"
    write_lines(tmp_path / "rows.jsonl", rows)
    write_texts(tmp_path / "rows.jsonl", out, lm={"n_ctx": 100}, **JOB)
    next(out.glob("texts-*.jsonl")).unlink()
    again = write_texts(tmp_path / "rows.jsonl", out, lm={"n_ctx": 100}, **JOB)
    assert 0 < again.written <= 4
    assert again.already + again.written == 10
    check(*read_lines(out), rows, alone)
    with pytest.raises(mtpcore.MtpcoreError, match="texts of another job"):
        write_texts(tmp_path / "rows.jsonl", out, lm={"n_ctx": 100}, **{**JOB, "seed": 6})
    third = write_texts(tmp_path / "rows.jsonl", out, lm={"n_ctx": 100}, **JOB)
    assert (third.already, third.written) == (10, 0)


@pytest.mark.many_processes
def test_a_job_that_is_killed_goes_on_when_it_is_called_again(ray, tmp_path, alone):
    rows, out = rows_of(40), tmp_path / "out"
    write_lines(tmp_path / "rows.jsonl", rows)
    program = textwrap.dedent(f"""
        import os, signal, threading, time, ray
        from pathlib import Path
        from mtpcore.cluster import write_texts
        def kill():
            while len([*Path("out").glob("texts-*")]) < 2:
                time.sleep(0.005)
            os.kill(os.getpid(), signal.SIGKILL)
        ray.init({ray.get_runtime_context().gcs_address!r}, log_to_driver=False)
        threading.Thread(target=kill, daemon=True).start()
        write_texts("rows.jsonl", "out", lm={{"n_ctx": 100}}, **{JOB})
    """)
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, timeout=300)
    assert ended.returncode == -9
    n_there = read_lines(out)[1]
    assert n_there >= 8
    done = write_texts(tmp_path / "rows.jsonl", out, lm={"n_ctx": 100}, **JOB)
    assert done.written == 40 - done.already < 40
    check(*read_lines(out), rows, alone)


@pytest.mark.many_processes
def test_columns_of_parquet_files_stay_as_they_are(ray, tmp_path, alone):
    table = pyarrow.table(
        {
            "key": ["a", "b", "c"],
            "said": ["x = ", "y = ", "z" * 300],
            "n": pyarrow.array([1, None, 3], pyarrow.int16()),
        }
    )
    parquet.write_table(table, tmp_path / "rows.parquet")
    names = {"key": "key", "prompt": "said"}
    done = write_texts(tmp_path, tmp_path / "out", lm={"n_ctx": 100}, **JOB, **names)
    assert (done.written, done.failed, done.tokens) == (3, 1, 12)
    (path,) = (tmp_path / "out").glob("*.parquet")
    found = parquet.read_table(path)
    assert found.select(["key", "said", "n"]) == table
    texts = found["text"].to_pylist()
    for i, key in enumerate("ab"):
        said = table["said"][i].as_py()
        assert texts[i] == alone.generate(said, seed=seed_of(5, key), **OPTIONS).text
    assert texts[2] is None
    assert "longer than the context" in found["error"][2].as_py()


@pytest.mark.many_processes
def test_what_a_job_refuses(ray, tmp_path):
    rows = tmp_path / "rows.jsonl"
    out = tmp_path / "out"

    def refused(match, **more):
        with pytest.raises(mtpcore.MtpcoreError, match=match):
            write_texts(rows, out, **{**JOB, **more})
        assert not [*out.glob("texts-*")] if out.exists() else True

    refused("no such file")
    write_lines(rows, [{"id": 1, "prompt": "x"}, {"id": 1, "prompt": "y"}])
    refused("same key")
    refused("at least 1", actors=0)
    write_lines(rows, [{"id": 1, "prompt": "x"}])
    refused("the job has ended.*no such option", options={"foo": 1})
    for line, match in (
        ('{"prompt": "x"}', "no such field"),
        ('{"id": null}', "a key is"),
        ('{"id": true}', "a key is"),
        ("[1]", "no JSON object"),
    ):
        rows.write_text(line)
        refused(match)
    (tmp_path / "rows.csv").write_text("id\n1\n")
    with pytest.raises(mtpcore.MtpcoreError, match="one kind"):
        write_texts([rows, tmp_path / "rows.csv"], out, **JOB)
