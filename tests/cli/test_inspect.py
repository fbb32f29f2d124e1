"""``mtpcore inspect``."""

import json
import re

import pytest
from harness import hybrid_family
from harness.architectures import NAMES, architecture_of, header
from harness.headed import HEADED, SKIPPED
from harness.headers import build, entry, tensor, text

import mtpcore
from mtpcore.cli import inspect
from mtpcore.cli.anatomy import describe_model, role_of
from mtpcore.cli.llama_cpp import judge_for_llama_cpp
from mtpcore.cli.terminal import spell_bytes
from mtpcore.errors import ModelFileError


def test_everything_is_there_for_people(command, glm):
    code, out, err = command("inspect", glm)
    assert (code, err) == (0, "")
    for said in (
        "layout        combined",
        "glm4moe.nextn_predict_layers = 1",
        "glm_nextn of plugin glm_nextn: chain",
        "blk.4.nextn.shared_head_head.weight: borrowed from output.weight Q8_0",
        "blk.4.nextn.shared_head_norm.weight: its own F32",
        "memory for 2048 tokens in f16",
    ):
        assert said in out


def test_sampling_settings_are_shown(command, glm, write_part, tmp_path):
    usual = "temp 0.8, top-k 40, top-p 0.95, min-p 0.05, repeat-penalty 1"
    assert f"sampling      {usual}\n" in command("inspect", glm)[1]
    keys = {"general.sampling.top_k": 7, "general.sampling.mirostat": 2}
    path = write_part(tmp_path / "m.gguf", lambda name: True, **keys)
    out = command("inspect", path)[1]
    assert "sampling      top-k 7 (of the file), temp 0.8, top-p 0.95" in out
    assert "general.sampling.mirostat is not taken: there is no such sampler here" in out
    found = json.loads(command("inspect", path, "--json")[1])["sampling"]
    assert (found["recommended"], found["settings"]["top_k"]) == (["top_k"], 7)


def test_the_file_comes_first_and_the_machine_last(command, glm):
    lines = command("inspect", glm)[1].splitlines()
    titles = [line for line in lines if line and not line.startswith(" ")]
    assert lines[0].startswith("file ")
    assert titles[-1] == "this machine"
    assert [line.split()[0] for line in lines[lines.index("this machine") + 1 :] if line] == [
        "instructions", "prefetch"
    ]  # fmt: skip


def test_everything_is_there_for_programs(command, glm):
    found = json.loads(command("inspect", glm, "--json", "-c", 100)[1])
    model = mtpcore.load_model(glm)
    assert found["metadata"]["tokenizer.ggml.tokens"]["length"] == 2048
    assert sum(row["bytes"] for row in found["roles"]) == model.n_bytes
    assert {row["role"] for row in found["roles"]} == {
        "embedding", "trunk", "norms", "output", "head"
    }  # fmt: skip
    head = [t for t in found["tensors"] if t["role"] == "head"]
    assert {t["name"].split(".")[1] for t in head} == {"4"}
    assert found["isa"]["used"] in found["isa"]["available"]
    assert found["fetch"]["used"] in found["fetch"]["available"]


@pytest.mark.parametrize("kv_dtype", ["f32", "f16", "q8_0"])
def test_the_memory_plan_is_what_contexts_take(command, glm, kv_dtype):
    found = json.loads(command("inspect", glm, "--json", "-c", 100, "--kv-dtype", kv_dtype)[1])
    model = mtpcore.load_model(glm)
    cross = mtpcore.link(mtpcore.Context(model, 100, kv_dtype=kv_dtype))
    cross.prepare()
    parts = {part["role"]: part for part in found["plan"]["parts"]}
    for role, name in (("llm", "llm"), ("draft", "glm_nextn")):
        taken = cross.contexts[role].runner.memory.store.n_bytes
        assert parts[name]["kv_per_sequence"] == taken
    packed = {
        key: sum(one.nbytes for one in made) if isinstance(made, list) else made.nbytes
        for key, made in model.packed.items()
    }
    assert sum(part["weights"] for part in parts.values()) == sum(packed.values())
    shared = set(cross.contexts["llm"].program.weights()) & set(
        cross.contexts["draft"].program.weights()
    )
    assert parts["glm_nextn"]["shared"] >= sum(n for key, n in packed.items() if key[2] in shared)


def test_the_memory_plan_counts_every_head(command):
    """Three heads, each with a memory and weights of its own, and an embedding that they share."""
    found = json.loads(command("inspect", "demo:mimo2", "--json", "-c", 1000)[1])
    parts = {part["role"]: part for part in found["plan"]["parts"]}
    model = mtpcore.load_model("demo:mimo2")
    cross = mtpcore.link(mtpcore.Context(model, 1000))
    cross.prepare()
    heads = [one for role, one in cross.contexts.items() if role != "llm"]
    assert len(heads) == 3
    packed = [made if isinstance(made, list) else [made] for made in model.packed.values()]
    assert sum(part["weights"] for part in parts.values()) == sum(
        one.nbytes for made in packed for one in made
    )
    alone = mtpcore.Context(model, 1000, graph_type="draft", drafter="mimo2_mtp").runner.memory
    assert parts["mimo2_mtp"]["kv_per_sequence"] == 3 * sum(g.store.n_bytes for g in alone.groups)


def test_the_memory_plan_counts_states(tmp_path):
    """Of the trunk and of the head: all slots of a sequence, and one with its log."""
    model = hybrid_family.subject(tmp_path).model
    described = describe_model(model, n_ctx=100, kv_dtype="f16")
    parts = {part["role"]: part for part in described["plan"]["parts"]}
    cross = mtpcore.link(mtpcore.Context(model, 100))
    for role, name in (("llm", "llm"), ("draft", "hybrid_head")):
        store = cross.contexts[role].runner.memory.recurrent.store
        assert parts[name]["slot"] == store.slot_bytes > 0
        assert parts[name]["states_per_sequence"] == store.n_bytes
        for n_bytes in (0, 3 * store.slot_bytes):
            few = describe_model(model, n_ctx=100, kv_dtype="f16", checkpoint_bytes=n_bytes)
            part = next(one for one in few["plan"]["parts"] if one["role"] == name)
            budgeted = mtpcore.link(mtpcore.Context(model, 100, checkpoint_bytes=n_bytes))
            store = budgeted.contexts[role].runner.memory.recurrent.store
            assert part["states_per_sequence"] == store.n_bytes
    lines = "\n".join(inspect._plan(described))
    assert f"recurrent states up to {spell_bytes(parts['llm']['states_per_sequence'])}" in lines
    kept = ("weights", "kv_per_sequence", "states_per_sequence")
    total = sum(part[name] for part in parts.values() for name in kept)
    assert lines.endswith(f"{spell_bytes(total)} with one sequence")


@pytest.mark.parametrize("option", ["--json", "--tensors"])
def test_a_drawing_is_nothing_else(command, glm, option):
    code, out, err = command("inspect", glm, "--graph", "llm", option)
    assert (code, out) == (2, "")
    assert "leave --json" in err


def test_the_plan_without_packing_counts_the_file_apart(command, glm):
    found = json.loads(command("inspect", glm, "--json", "--no-repack")[1])
    packed = json.loads(command("inspect", glm, "--json")[1])
    model = mtpcore.load_model(glm, repack=False)
    mtpcore.link(mtpcore.Context(model, 100)).prepare()
    mapped = {
        key[2]
        for key, made in model.packed.items()
        if key[1] != "vector" and (made[0] if isinstance(made, list) else made).is_mapped
    }
    parts = found["plan"]["parts"]
    in_file = sum(model.tensors[name].n_bytes for name in mapped)
    assert sum(part["mapped"] for part in parts) == in_file > 0
    assert sum(part["mapped"] for part in packed["plan"]["parts"]) == 0
    vectors = sum(made.nbytes for key, made in model.packed.items() if key[1] == "vector")
    assert sum(part["weights"] for part in parts) == vectors
    assert "in the file" in command("inspect", glm, "--no-repack")[1]


@pytest.mark.parametrize("graph", ["llm", "draft"])
@pytest.mark.parametrize(
    ("form", "begins"), [("text", "program "), ("mermaid", "flowchart"), ("dot", "digraph")]
)
def test_graphs_are_drawn(command, glm, graph, form, begins):
    code, out, _ = command("inspect", glm, "--graph", graph, "--format", form)
    assert code == 0
    assert out.startswith(begins)
    assert ("nextn" in out) == (graph == "draft")


def test_a_graph_that_there_is_not(command, glm):
    code, out, err = command("inspect", glm, "--graph", "drfat")
    assert (code, out) == (1, "")
    assert f"{glm}: no such graph; wanted llm, draft; got drfat" in err


def test_a_model_without_a_head_has_no_draft_graph(command, headless):
    assert (
        "lookup, as no other fits: copies from earlier in the text"
        in command("inspect", headless)[1]
    )
    code, out, err = command("inspect", headless, "--graph", "draft")
    assert (code, out) == (1, "")
    assert "the model has no drafter" in err


@pytest.mark.parametrize("graph", ["draft", "encoder"])
def test_a_drafter_without_graphs_has_none_to_draw(command, glm, graph):
    code, out, err = command("inspect", glm, "--graph", graph, "--drafter", "lookup")
    assert (code, out) == (1, "")
    assert "drafter 'lookup'" in err
    assert f"got {graph}" in err
    assert "wanted" not in err


def test_every_tensor_on_request(command, glm):
    out = command("inspect", glm, "--tensors")[1]
    assert [name for name in mtpcore.load_model(glm).tensors if name not in out] == []


@pytest.mark.parametrize(
    ("name", "n_layers", "role"),
    [
        ("token_embd.weight", 4, "embedding"),
        ("output.weight", 4, "output"),
        ("output_norm.weight", 4, "norms"),
        ("blk.3.attn_norm.weight", 4, "norms"),
        ("blk.3.attn_output.weight", 4, "trunk"),
        ("blk.4.attn_norm.weight", 4, "head"),
        ("blk.0.attn_q.weight", None, "head"),
        ("token_embd.weight", None, "head"),
    ],
)
def test_roles(name, n_layers, role):
    assert role_of(name, n_layers) == role


def test_files_do_not_steer_the_terminal(command, write_part, tmp_path):
    name = {"general.name": "a\x1b[2Jb\x9bc"}
    code, out, _ = command("inspect", write_part(tmp_path / "evil.gguf", lambda _: True, **name))
    assert code == 0
    assert "general.name" in out
    assert not {"\x1b", "\x9b"} & set(out)


def test_a_drafter_in_a_file_of_its_own(command, head_alone):
    code, out, _ = command("inspect", head_alone)
    assert code == 0
    assert "layout        mtp-only" in out
    assert "the file holds a drafter alone" in out
    assert "glm_nextn    weights" in out


def test_a_file_that_is_none(command, tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF" + b"\0" * 9)
    code, out, err = command("inspect", path)
    assert (code, out) == (1, "")
    assert "Traceback" not in err


@pytest.mark.parametrize("words", [("--format", "dot"), ("--drafter", "glm_nextn")])
def test_how_to_draw_without_what_to_draw_is_refused(command, glm, words):
    code, out, err = command("inspect", glm, *words)
    assert (code, out) == (2, "")
    assert "--graph NAME" in err


LLAMA = entry("general.architecture", 8, text("llama"))
F32 = tensor("t", [8], 0, 0)


def write_file(path, entries=(), tensors=(), n_bytes=0):
    path.write_bytes(build(list(entries), list(tensors), bytes(n_bytes)))
    return path


@pytest.mark.parametrize(
    ("entries", "tensors", "why"),
    [
        ([], [], "the file does not name an architecture"),
        ([LLAMA], [], "tensors of the architecture 'llama' are missing"),
        ([entry("general.architecture", 8, text("new"))], [], "no plugin knows"),
        ([LLAMA], [F32], "tensors of the architecture 'llama' are missing"),
        ([LLAMA], [tensor("t", [8], 99, 0)], "does not know the tensor type"),
    ],
    ids=["nothing", "metadata only", "an architecture", "a tensor", "a tensor type"],
)
def test_every_file_that_can_be_read_is_shown(command, tmp_path, entries, tensors, why):
    """With what it holds, and why it cannot be run; run says the same."""
    path = write_file(tmp_path / "odd.gguf", entries, tensors, 32)
    code, out, err = command("inspect", path, "--tensors")
    assert (code, err) == (0, "")
    assert why in out
    found = json.loads(command("inspect", path, "--json")[1])
    assert why in found["error"]
    assert [one["name"] for one in found["tensors"]] == ["t" for _ in tensors]
    assert list(found["metadata"]) == ["general.architecture" for _ in entries]
    assert all(f" {name} " in out for name in ("t",) if tensors)
    code, out, err = command("run", path, "hi")
    assert (code, out) == (1, "")
    assert err == f"mtpcore: {found['error']}\n"


def vocabulary(model, pre):
    return [
        entry("tokenizer.ggml.model", 8, text(model)),
        entry("tokenizer.ggml.pre", 8, text(pre)),
    ]


@pytest.mark.parametrize(
    ("architecture", "entries", "names", "kind", "said"),
    [
        ("llama", [], ["t"], 0, "knows architecture, tokenizer and types"),
        ("qwen35", [], ["blk.1.nextn.eh_proj.weight"], 0, "and runs the head"),
        ("bailingmoe2", [], ["blk.1.nextn.eh_proj.weight"], 0, "and skips the head"),
        ("llama", [], ["blk.1.nextn.eh_proj.weight"], 0, "and refuses files with its head"),
        ("mtpcore", [], ["blk.1.nextn.eh_proj.weight"], 0, "not know architecture mtpcore"),
        ("llama", vocabulary("gpt2", "qwen2"), ["t"], 8, "knows architecture"),
        ("llama", vocabulary("gpt2", "later"), ["t"], 0, "does not know pre-tokenizer later"),
        ("llama", vocabulary("llama", "later"), ["t"], 0, "knows architecture"),
        ("llama", vocabulary("other", "later"), ["t"], 0, "does not know tokenizer other"),
        ("llama", [], ["t"], 99, "does not know type 99"),
        ("new", vocabulary("gpt2", "x"), ["t"], 0, "know architecture new, pre-tokenizer x"),
    ],
)
def test_what_llama_cpp_would_do(command, tmp_path, architecture, entries, names, kind, said):
    head = entry("general.architecture", 8, text(architecture))
    tensors = [tensor(name, [32], kind, 0) for name in names]
    path = write_file(tmp_path / "odd.gguf", [head, *entries], tensors, 128)
    (line,) = (x for x in command("inspect", path)[1].splitlines() if x.startswith("llama.cpp "))
    assert said in line
    assert "of 1 October 2026" in line
    found = json.loads(command("inspect", path, "--json")[1])["llama_cpp"]
    assert all(f"not know {', '.join(found['unknown'])}" in line for _ in found["unknown"])
    assert ("head" in line) == (found["head"] is not None)


def test_the_tables_are_of_the_llama_cpp_that_the_tests_compare_with():
    """Its generator writes a file of each architecture that it knows."""
    for name in NAMES:
        judged = judge_for_llama_cpp(architecture_of(header(name)), {}, {})
        assert judged == {"of": "1 October 2026", "unknown": [], "option": None, "head": None}


@pytest.mark.parametrize("architecture", HEADED)
def test_heads_are_run_or_skipped_as_the_tests_saw(architecture):
    judged = judge_for_llama_cpp(architecture, {}, {"blk.1.nextn.eh_proj.weight": "F32"})
    assert judged["head"] == ("skips" if architecture in SKIPPED else "runs")


def test_the_size_of_a_newer_type_is_not_known(command, tmp_path):
    tensors = [F32, tensor("new", [8], 99, 32)]
    path = write_file(tmp_path / "odd.gguf", [LLAMA], tensors, 64)
    found = json.loads(command("inspect", path, "--json")[1])
    assert {row["type"]: row["bytes"] for row in found["roles"]} == {"F32": 32, "type 99": None}
    lines = command("inspect", path)[1].splitlines()
    assert "type 99     1         ?" in [line.strip() for line in lines]


def test_a_file_that_cannot_be_read_is_an_error(command, tmp_path):
    path = tmp_path / "odd.gguf"
    path.write_bytes(build([LLAMA], [F32], bytes(32))[:-1])
    for words in ((), ("--json",)):
        code, out, err = command("inspect", path, *words)
        assert (code, out) == (1, "")
        assert "the tensor ends after the end of the file" in err


def test_a_model_whose_tokenizer_is_damaged_is_shown(command, write_part, tmp_path):
    path = write_part(
        tmp_path / "odd.gguf", lambda _: True, **{"tokenizer.ggml.tokens": ["twice", "twice"]}
    )
    code, out, _ = command("inspect", path)
    assert code == 0
    assert "cannot run" in out
    assert "tokenizer     none that is supported" in out
    assert "blk.4.nextn.eh_proj.weight" in command("inspect", path, "--tensors")[1]
    assert command("inspect", path, "--graph", "llm")[0] == 0


@pytest.mark.parametrize(
    ("said_by", "said", "option"),
    [
        ({"general.architecture": "llama", "general.type": "adapter"}, "adapter", "--lora"),
        # as llama-imatrix writes it, without an architecture
        ({"general.type": "imatrix"}, "importance matrix", "--imatrix, to quantise it"),
        (
            {"general.architecture": "clip", "general.type": "mmproj"},
            "encoder of images",
            "--mmproj",
        ),
        ({"general.architecture": "controlvector"}, "control vector", "--control-vector"),
    ],
)
def test_a_file_that_is_no_model_is_named(command, tmp_path, said_by, said, option):
    """As it is in an error of loading, with what it holds and who takes it."""
    entries = [entry(key, 8, text(value)) for key, value in said_by.items()]
    path = write_file(tmp_path / "other.gguf", entries, [tensor("direction.1", [32], 0, 0)], 128)
    code, out, _ = command("inspect", path)
    assert code == 0
    assert re.search(rf"cannot run +.*the file is an? {said}", out)
    assert f"takes it beside a model: {option}\n" in out
    assert "tokenizer" not in out
    assert "F32         1" in out.split("tensors")[1]
    with pytest.raises(ModelFileError, match=said):
        mtpcore.load_model(path)
