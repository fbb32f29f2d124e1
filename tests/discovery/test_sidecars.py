"""Drafters in files beside a model: which are found, which one drafts, and why others do not."""

import logging
import os
import shutil
import types

import msgspec
import numpy as np
import pytest
import toy
from harness import eagle3, qwen
from harness.damage import ORIGINALS, write_damaged
from harness.fixtures import checkpoint
from harness.generated import TINY, make_metadata, make_tensors, types_of
from harness.published import tokenizer, write_checkpoint
from harness.search import searching
from hypothesis import given, reject
from hypothesis import strategies as st

import mtpcore
from mtpcore.conversion import convert
from mtpcore.discovery import loading
from mtpcore.discovery.loading import load_model
from mtpcore.discovery.registry import Registry
from mtpcore.discovery.sidecars import find_candidates
from mtpcore.errors import GraphError, ModelFileError, PluginError
from mtpcore.gguf import open_model_file, write_model_file
from mtpcore.graph import GraphType
from mtpcore.plugin import Feed, Fit, Outputs, first_of, hookimpl

NAMED = toy.replaced(fit=msgspec.structs.replace(toy.HEAD.fit, sidecars=("mtp-*.gguf",)))
TRUNK, HEAD = toy.trunk_tensors(), toy.head_tensors()
SHARED = {n: TRUNK[n] for n in ("token_embd.weight", "output_norm.weight", "output.weight")}


def plugins_of(*drafters, trunk=toy.TRUNK):
    module = types.ModuleType("named")
    module.mtpcore_models = hookimpl(lambda: [trunk], specname="mtpcore_models")
    module.mtpcore_drafters = hookimpl(lambda: list(drafters), specname="mtpcore_drafters")
    return Registry.of(module)


KNOWN = plugins_of(NAMED)


@pytest.fixture
def trunk(tmp_path):
    """A trunk without a head."""
    return toy.write(tmp_path / "big-Q4_0.gguf", TRUNK)


def write_head(path, tensors=None, kind="F32", heads=1, **metadata):
    """Write a file with the head and the tables that it shares."""
    tensors = SHARED | HEAD if tensors is None else tensors
    kinds = {name: kind for name, values in tensors.items() if values.ndim > 1}
    return toy.write(path, tensors, heads=heads, types=kinds, **metadata)


def load(path, plugins=KNOWN, **options):
    return load_model(path, plugins=plugins, **options)


def warnings_of(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


# Which files are found


@pytest.mark.parametrize(
    ("model", "files", "wanted"),
    [
        # The model's own name, then that name with another type, then names with more other words.
        (
            "Big-3.5-Q4_K_M.gguf",
            [
                "mtp-Other.gguf",
                "mtp-Big-3.5-it-Q8_0.gguf",
                "mtp-big-3.5-UD-Q8_K_XL.gguf",
                "mtp-Big-3.5-Q4_K_M.gguf",
            ],
            [3, 2, 1, 0],
        ),
        ("big-00001-of-00003.gguf", ["mtp-big-x.gguf", "MTP-BIG.GGUF"], [1, 0]),
        ("big.gguf", ["mtp-big-00002-of-00002.gguf", "mtp-big-00001-of-00002.gguf"], [1]),
        ("gemma-4-31B-it.gguf", ["mtp-qwen-27b.gguf", "mtp-Gemma4-31B-it-Q8_0.gguf"], [1, 0]),
        ("mtp-big.gguf", ["mtp-big.gguf"], []),
        ("big.gguf", ["mtp-.gguf", "mtp-big", "xmtp-big.gguf", "mtp-big.gguf.part"], []),
    ],
)
def test_names_that_match_come_in_the_order_of_their_nearness(tmp_path, model, files, wanted):
    for name in files:
        (tmp_path / name).touch()
    found = find_candidates(tmp_path / model, [NAMED])
    assert [one.path.name for one in found] == [files[i] for i in wanted]
    assert all(one.drafters == ("toy_head",) for one in found)


def test_only_regular_files_count_and_links_to_them(tmp_path):
    (tmp_path / "blob").touch()
    (tmp_path / "mtp-a.gguf").symlink_to("blob")
    (tmp_path / "mtp-b.gguf").mkdir()
    os.mkfifo(tmp_path / "mtp-c.gguf")
    (tmp_path / "mtp-d.gguf").symlink_to("mtp-d.gguf")
    (tmp_path / "mtp-e.gguf").symlink_to("nowhere")
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper/mtp-f.gguf").touch()
    found = find_candidates(tmp_path / "big.gguf", [NAMED])
    assert [one.path.name for one in found] == ["mtp-a.gguf"]
    assert find_candidates(tmp_path / "nowhere/big.gguf", [NAMED]) == []


@pytest.mark.parametrize("pattern", ["*", "mtp.gguf", "*-*.gguf", "../mtp-*.gguf", "*.gguf"])
def test_a_pattern_that_would_match_every_file_is_refused(pattern):
    spec = toy.replaced(fit=msgspec.structs.replace(toy.HEAD.fit, sidecars=(pattern,)))
    with pytest.raises(PluginError, match=r"fit\.sidecars"):
        plugins_of(spec)


# Which one drafts


def test_a_head_beside_a_trunk_completes_it(trunk, caplog):
    whole = load(toy.write(trunk.with_name("whole.gguf"), TRUNK | HEAD, heads=1))
    head = write_head(trunk.with_name("mtp-big-Q4_0.gguf"))
    with load(trunk) as model:
        assert model.paths == (trunk, head)
        (beside,) = model.sidecars
        assert (beside.path, beside.used, beside.reason) == (head, True, "")
        for kind in (GraphType.LLM, GraphType.DRAFT):
            assert str(model.program(kind)) == str(whole.program(kind))
        for name, tensor in whole.tensors.items():
            assert np.array_equal(tensor.array(), model.tensors[name].array())
        assert model.open_draft_model() is None
    assert warnings_of(caplog) == []
    for options in ({"mtp": False}, {"sidecars": False}):
        alone = load(trunk, **options)
        assert (alone.paths, alone.drafters, alone.sidecars) == ((trunk,), (), ())


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        ({"mtp-big-Q8_0.gguf": "Q8_0", "mtp-big-A.gguf": "F16"}, "mtp-big-Q8_0.gguf"),
        ({"mtp-big-F16.gguf": "F16", "mtp-big-Q8_0.gguf": "Q8_0"}, "mtp-big-Q8_0.gguf"),
        ({"mtp-big.Q4_0.gguf": "Q4_0", "mtp-big.Q8_0.gguf": "Q8_0"}, "mtp-big.Q8_0.gguf"),
        ({"mtp-big-BF16.gguf": "BF16", "mtp-big-Q5_0.gguf": "Q5_0"}, "mtp-big-Q5_0.gguf"),
        ({"mtp-big-Q4_0.gguf": "Q4_0", "mtp-big-Q8_0.gguf": "Q8_0"}, "mtp-big-Q4_0.gguf"),
    ],
    ids=["name", "Q8_0 before F16", "Q8_0 before Q4_0", "Q5_0 before BF16", "the model's own name"],
)
def test_the_nearest_name_then_the_type_nearest_to_eight_bits(trunk, names, wanted):
    for name, kind in names.items():
        write_head(trunk.with_name(name), kind=kind)
    with load(trunk) as model:
        used = [one.path.name for one in model.sidecars if one.used]
        reasons = [one.reason for one in model.sidecars if not one.used]
    assert (used, reasons) == ([wanted], [f"{wanted} is preferred"])


def test_one_that_does_not_fit_makes_room_for_the_next(trunk, caplog):
    write_head(trunk.with_name("mtp-big-Q4_0.gguf"), architecture="other")
    head = write_head(trunk.with_name("mtp-other.gguf"))
    with load(trunk) as model:
        assert [one.path for one in model.sidecars if one.used] == [head]
        assert [d.name for d in model.drafters] == ["toy_head"]
        model.program(GraphType.DRAFT)
    (said,) = warnings_of(caplog)
    assert "mtp-big-Q4_0.gguf is left out" in said


def test_a_model_with_a_head_keeps_it(tmp_path):
    whole = toy.write(tmp_path / "whole.gguf", TRUNK | HEAD, heads=1)
    head = write_head(tmp_path / "mtp-whole.gguf")
    with load(whole) as model:
        assert model.paths == (whole,)
        (beside,) = model.sidecars
        assert (beside.path, beside.used) == (head, False)
        assert "holds the head 'toy_head'" in beside.reason


def test_a_drafter_in_a_file_that_is_not_used_is_said_to_be_there(trunk):
    """Two files of different drafters: the one that is not used is named to who asks for it."""
    other = toy.replaced(
        name="other", fit=Fit(tensors=("blk.{n}.other.weight",), sidecars=("other-*.gguf",))
    )
    write_head(trunk.with_name("mtp-big-Q4_0.gguf"))
    write_head(trunk.with_name("other-big.gguf"))
    with load(trunk, plugins_of(NAMED, other)) as model:
        with pytest.raises(PluginError, match=r"mtp-big-Q4_0\.gguf is preferred") as caught:
            model.find_drafter("other")
        assert "other-big.gguf" in caught.value.fix
        with pytest.raises(PluginError) as caught:
            model.find_drafter("nobody")
        assert "other-big.gguf" not in caught.value.fix


def test_split_files(tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    parts = [f"big-{i:05}-of-00002.gguf" for i in (1, 2)]
    for stem, tensors, heads in (("", TRUNK, 0), ("mtp-", SHARED | HEAD, 1)):
        names = list(tensors)
        for i, (part, held) in enumerate(zip(parts, (names[:2], names[2:]), strict=True)):
            toy.write(
                folder / (stem + part),
                {name: tensors[name] for name in held},
                heads=heads,
                **{
                    "split.no": np.uint16(i),
                    "split.count": np.uint16(2),
                    "split.tensors.count": np.int32(len(names)),
                },
            )
    with load(folder / parts[0]) as model:
        (beside,) = model.sidecars
        assert (beside.path.name, beside.used) == ("mtp-" + parts[0], True)
        assert [path.name for path in model.paths] == [*parts, *("mtp-" + part for part in parts)]


# What does not fit


def narrower(tensors):
    return {name: values[..., : values.shape[-1] // 2] for name, values in tensors.items()}


MISFITS = {
    "another architecture": ({"architecture": "other"}, "no plugin knows this architecture"),
    "another depth": (
        {"n_blocks": 7, "toy.nextn_predict_layers": 1},
        "depth of the trunk; wanted 2; got 6",
    ),
    "another width": ({"tensors": narrower(SHARED | HEAD)}, "shape of"),
    "another vocabulary": (
        {"tensors": SHARED | HEAD | {"token_embd.weight": TRUNK["token_embd.weight"][:60]}},
        "shape of token_embd.weight; wanted (64, 32); got (60, 32)",
    ),
    "no head": ({"tensors": SHARED, "heads": 0}, "holds no head"),
    "half a head": (
        {"tensors": SHARED | {n: v for n, v in HEAD.items() if "join" in n}},
        "holds no head",
    ),
    "a matrix of another width": (
        {"tensors": SHARED | HEAD | {"blk.2.join.weight": HEAD["blk.2.join.weight"][:, :40]}},
        "'toy_head' of plugin",
    ),
    "whole numbers for weights": (
        {"tensors": SHARED | HEAD | {"blk.2.join.weight": HEAD["blk.2.join.weight"].astype("i4")}},
        "'toy_head' of plugin",
    ),
    "other tokens": (
        {"tokenizer.ggml.tokens": [f"t{i}" for i in range(63)] + ["<tool>"]},
        "token 63: the file spells tokens otherwise",
    ),
}


@pytest.fixture
def spelled(tmp_path):
    """A trunk with tokens."""
    tokens = [f"t{i}" for i in range(64)]
    return toy.write(tmp_path / "big.gguf", TRUNK, **{"tokenizer.ggml.tokens": tokens})


@pytest.mark.parametrize(("changes", "why"), MISFITS.values(), ids=list(MISFITS))
def test_what_does_not_fit_is_left_out_with_the_reason(spelled, caplog, changes, why):
    head = write_head(spelled.with_name("mtp-big-Q8_0.gguf"), **changes)
    with load(spelled) as model:
        assert (model.paths, model.drafters) == ((spelled,), ())
        (beside,) = model.sidecars
        assert (beside.path, beside.used) == (head, False)
        assert why in beside.reason
        assert "fix:" not in beside.reason
        model.program()
    assert any("is left out" in said and why in said for said in warnings_of(caplog))


@pytest.mark.parametrize(("changes", "why"), MISFITS.values(), ids=list(MISFITS))
def test_what_a_caller_names_is_refused_where_it_does_not_fit(spelled, caplog, changes, why):
    head = write_head(spelled.with_name("chosen.gguf"), **changes)
    if "spells" in why:  # a fine-tune may have renamed tokens, and its base's head still drafts
        assert load(spelled, mtp_path=head).drafters
        assert any(why in said for said in warnings_of(caplog))
        return
    with pytest.raises((ModelFileError, GraphError)) as caught:
        load(spelled, mtp_path=head)
    assert why.replace("no plugin knows this", "of different")[:20] in str(caught.value)


@pytest.mark.parametrize("keep", [0, 3, 4, 30, 200, -40])
def test_a_damaged_file_stops_nothing(trunk, keep):
    head = write_head(trunk.with_name("mtp-big-Q4_0.gguf"))
    head.write_bytes(head.read_bytes()[:keep])
    with load(trunk) as model:
        assert [(one.used, bool(one.reason)) for one in model.sidecars] == [(False, True)]
        model.program()


def test_a_plugin_that_breaks_on_a_file_stops_nothing(trunk):
    def build(g, inputs, h):
        raise KeyError("nothing here")

    head = write_head(trunk.with_name("mtp-big-Q4_0.gguf"))
    with load(trunk, plugins_of(msgspec.structs.replace(NAMED, build=build))) as model:
        assert (model.paths, model.drafters) == ((trunk,), ())
        assert "KeyError" in model.sidecars[0].reason
    with pytest.raises(PluginError, match="KeyError"):
        load(trunk, plugins_of(msgspec.structs.replace(NAMED, build=build)), mtp_path=head)


def test_few_headers_are_read(trunk, monkeypatch):
    for i in range(20):
        trunk.with_name(f"mtp-x{i:02}.gguf").write_bytes(b"GGUF, perhaps")
    opened = []

    def count(path, **options):
        opened.append(path)
        return open_model_file(path, **options)

    monkeypatch.setattr(loading, "open_model_file", count)
    with load(trunk) as model:
        assert len(opened) == 1 + 8
        assert len(model.sidecars) == 20
        assert sum("the limit is 8" in one.reason for one in model.sidecars) == 12


def published(folder, name):
    """Return the checkpoint of a hybrid: of the reference model, or a small random one."""
    if name not in qwen.SHAPES:
        return checkpoint(name)
    s = qwen.SHAPES[name]
    tensors = qwen.published(s, qwen.weights(s))
    return write_checkpoint(folder, qwen.configuration(s), tensors, tokenizer(qwen.N_VOCAB))


@pytest.mark.parametrize("name", ["qwen35moe-17", "irregular layers, tied", "grouped"])
def test_the_head_of_a_hybrid_beside_it_drafts_as_in_its_file(name, tmp_path, caplog):
    """Which layers are recurrent is told layer by layer, and the head's file tells it of all."""
    source = published(tmp_path / "hf", name)
    for file, mtp in (("whole", "keep"), ("big", "drop"), ("mtp-big", "only")):
        convert(source, tmp_path / f"{file}.gguf", outtype="f16", mtp=mtp, mtp_type="f16")
    found = []
    for file in ("whole", "big"):
        with load_model(tmp_path / f"{file}.gguf") as model:
            assert [one.used for one in model.sidecars] == [file == "big"]
            cross = mtpcore.link(mtpcore.Context(model, 96, kv_dtype="f32", threads=1))
            sampling, made = mtpcore.Sampling(temperature=0.7, seed=2), []
            cross.llm.process(mtpcore.Batch.of(range(3, 40)))
            for _ in range(8):
                draft = cross.draft(0, 4, sampling)
                verdict = cross.verify({0: draft}, sampling)[0]
                cross.accept(0)
                made.append((draft, verdict.accepted, list(verdict.tokens)))
            found.append((model.hparams, made, cross.digest(0)))
    assert found[0] == found[1]
    assert not any("mtp-big" in said for said in warnings_of(caplog))


def test_a_head_brings_nothing_that_changes_the_trunk(tmp_path):
    """Neither a chat template nor metadata that the trunk lacks: texts stay the same."""

    class Scaled(toy.Hparams):
        def __init__(self, fields, tensors):
            super().__init__(fields, tensors)
            self.scale = fields.get("{arch}.logit_scale", float, 1.0)

    def build(g, inputs, h):
        return Outputs(logits=g.scale(toy.trunk(g, inputs, h).logits, h.scale))

    scaled = msgspec.structs.replace(toy.TRUNK, hparams=Scaled, build=build)
    known = plugins_of(NAMED, trunk=scaled)
    trunk = toy.write(tmp_path / "big.gguf", TRUNK)
    told = {"tokenizer.chat_template": "{{ messages }}", "general.name": "head"}
    head = write_head(tmp_path / "mtp-big.gguf", **told)
    with load(trunk, known) as model:
        assert [one.used for one in model.sidecars] == [True]
        assert not {"tokenizer.chat_template"} & model.metadata.keys()
    write_head(head, **{"toy.logit_scale": np.float32(0.5)})
    with load(trunk, known) as model:
        (beside,) = model.sidecars
        assert not beside.used
        assert "would change the model's own graph" in beside.reason
    with pytest.raises(ModelFileError, match="would change the model's own graph"):
        load(trunk, known, mtp_path=head)


# An output matrix that only the head's file has


@pytest.fixture
def tied(tmp_path):
    """A trunk that is tied to its table, beside the file of a head with a matrix of its own."""
    write_head(tmp_path / "mtp-big.gguf")
    return toy.write(tmp_path / "big.gguf", toy.trunk_tensors(output=False))


@pytest.mark.parametrize("named", [False, True], ids=["found", "named"])
def test_a_tied_trunk_stays_tied_beside_a_head_with_a_matrix(tied, named):
    head = tied.with_name("mtp-big.gguf")
    with (
        load(tied, sidecars=False) as alone,
        load(tied, **({"mtp_path": head} if named else {})) as model,
    ):
        assert model.paths == (tied, head)
        assert model.head_only == {*HEAD, "output.weight"}
        assert str(model.program()) == str(alone.program())
        logits = [
            mtpcore.Context(one, 8, threads=1).process(mtpcore.Batch.of([7])).logits.copy()
            for one in (alone, model)
        ]
        assert np.array_equal(*logits)
        assert "output.weight" in model.program(GraphType.DRAFT).weights()
        sources = {use.wanted: (use.source, use.tensor) for use in model.tie_report()}
        assert sources == {
            "blk.2.embed.weight": ("borrowed", "token_embd.weight"),
            "blk.2.head.weight": ("own", "output.weight"),
        }


def test_who_borrows_the_trunks_output_gets_none_of_its_heads(tied):
    """A drafter in a file of its own, and the trunk where it drafts for another model."""
    lone = toy.replaced(
        name="lone",
        fit=Fit(architectures=frozenset({"lone"})),
        standalone=True,
        hparams=toy.Hparams,
        feeds=(Feed(slot="hidden", taps=("hidden",), recycle="hidden"),),
        ties=(first_of("output.weight", "target:output.weight", "target:token_embd.weight"),),
    )
    known = plugins_of(NAMED, lone)
    file = tied.with_name("lone.gguf")
    toy.write(file, {"token_embd.weight": TRUNK["token_embd.weight"]}, architecture="lone")
    with load(tied, known) as model, load(file, known) as drafter:
        drafter.borrow_from(model)
        assert {n for n in drafter.tensors if ":" in n} == {"target:token_embd.weight"}
        assert (
            "output.weight" not in model.program(GraphType.DRAFT, drafter="draft_model").weights()
        )


@pytest.mark.parametrize("name", ["irregular layers, tied", "experts one by one"])
def test_a_tied_hybrid_drafts_with_the_matrix_of_its_heads_file(name, tmp_path):
    source = published(tmp_path / "hf", name)
    for file, mtp in (("big", "drop"), ("mtp-big", "only")):
        convert(source, tmp_path / f"{file}.gguf", outtype="f32", mtp=mtp, mtp_type="f32")
    matrix = np.random.default_rng(4).normal(size=(qwen.N_VOCAB, qwen.WIDTH)).astype(np.float32)
    head = tmp_path / "mtp-big.gguf"
    with open_model_file(head) as file:
        tensors = {t.name: np.array(t.array()) for t in file.tensors.values()}
        architecture, metadata = file.architecture, dict(file.metadata)
    assert "output.weight" not in tensors
    write_model_file(head, architecture, metadata, tensors | {"output.weight": matrix})
    tokens = qwen.tokens(8)
    with load_model(tmp_path / "big.gguf") as model:
        assert [one.used for one in model.sidecars] == [True]
        settings = {"kv_dtype": "f32", "threads": 1}
        trunk = mtpcore.Context(model, 32, taps=["hidden"], **settings)
        drafter = mtpcore.Context(model, 32, graph_type="draft", **settings)
        out = trunk.process(mtpcore.Batch.of(tokens, outputs="all"))
        table = model.tensors["token_embd.weight"].array()
        assert np.abs(out.logits - out.tap("hidden") @ table.T).max() < 1e-4
        slots = {"hidden": out.tap("hidden")[:-1]}
        drafts = drafter.process(mtpcore.Batch(tokens[1:], pos=1, slots=slots, outputs="all"))
        assert np.abs(drafts.logits - drafts.tap("hidden") @ matrix.T).max() < 1e-4
        assert np.abs(drafts.logits - drafts.tap("hidden") @ table.T).max() > 0.1


# Drafters with an architecture of their own


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A target, and a head beside it."""
    folder = tmp_path_factory.mktemp("pair")
    target, made = eagle3.write_target(folder), eagle3.write_head(folder, eagle3.Variant())
    return target, made.rename(folder / f"eagle3-{target.name}")


def test_a_draft_model_beside_its_target_drafts(pair):
    target, head = pair
    texts = {}
    for name, options in {"plain": {"sidecars": False}, "beside": {}}.items():
        cross = mtpcore.link(mtpcore.Context(load_model(target, **options), 64))
        generator = mtpcore.Generator(cross, sampling=mtpcore.Sampling.greedy(), draft=3)
        texts[name] = list(generator.generate([3, 14, 15, 9], max_tokens=20))
        has_head = [drafter.spec.name for drafter in cross.drafters.values()] != ["lookup"]
        assert has_head == (name == "beside")
    assert texts["plain"] == texts["beside"]
    with load_model(target) as model:
        assert [(one.path, one.used) for one in model.sidecars] == [(head, True)]
        assert model.paths == (target,)
    with mtpcore.LM(target, draft=2) as lm:
        assert "eagle3" in repr(lm)
    with mtpcore.LM(target, draft=0) as lm:
        assert "drafter=None" in repr(lm)


def test_contexts_that_draft_at_once_share_the_draft_model(pair):
    model = load_model(pair[0])
    first, second = (mtpcore.link(mtpcore.Context(model, 64), name) for name in ("auto", "eagle3"))
    assert first.contexts["draft"].model is second.contexts["draft"].model
    held = model.open_draft_model()
    held.close()
    assert model.open_draft_model() is not held


def test_who_drafts_without_a_file_opens_none(pair, tmp_path):
    target, head = (shutil.copy(path, tmp_path / path.name) for path in pair)
    model = load_model(target)
    head.unlink()
    cross = mtpcore.link(mtpcore.Context(model, 64), "lookup")
    assert [drafter.spec.name for drafter in cross.drafters.values()] == ["lookup"]
    with pytest.raises(ModelFileError, match="cannot open"):
        mtpcore.link(mtpcore.Context(model, 64))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"width": 16, "own_table": True}, None),
        ({"target_width": 48}, "a target of another width"),
        ({"n_vocab": 41}, "vocabulary is another one"),
        ({"layers": (2, 3, 9)}, "layer_input:9"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_draft_model_is_checked_before_it_is_used(tmp_path, changes, why):
    target = eagle3.write_target(tmp_path)
    made = eagle3.write_head(tmp_path, eagle3.Variant()._replace(**changes))
    head = made.rename(tmp_path / f"eagle3-{target.name}")
    with load_model(target) as model:
        (beside,) = model.sidecars
        assert (beside.path, beside.used) == (head, why is None)
        assert (why or "") in beside.reason
        assert (model.open_draft_model() is None) == (why is not None)
        (drafter,) = mtpcore.link(mtpcore.Context(model, 32)).drafters.values()
        assert (drafter.spec.name != "lookup") == (why is None)


# Whatever lies beside a model


@pytest.fixture(scope="module")
def headless(tmp_path_factory):
    """A trunk of the family whose damaged files are written."""
    path = tmp_path_factory.mktemp("headless") / "big.gguf"
    tensors = make_tensors("glm4moe", "F32", TINY)
    n_layers = 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("blk."))
    kept = {n: t for n, t in tensors.items() if not n.startswith(f"blk.{n_layers - 1}.")}
    metadata = make_metadata("glm4moe", TINY) | {
        "glm4moe.block_count": n_layers - 1,
        "glm4moe.nextn_predict_layers": 0,
    }
    write_model_file(path, "glm4moe", metadata, kept, types_of(kept, "F32"))
    return path


@searching(60)
@given(seed=st.integers(0, 1 << 20).map(lambda n: n * len(ORIGINALS)))  # all of one family
def test_a_model_loads_whatever_lies_beside_it(headless, seed):
    head = headless.with_name("mtp-big.gguf")
    try:
        write_damaged(head, seed)
    except ModelFileError:
        reject()
    with load_model(headless) as model, load_model(headless, sidecars=False) as alone:
        (beside,) = model.sidecars
        assert beside.used == bool(model.drafters) == (head in model.paths)
        assert beside.used == (not beside.reason)
        assert model.program() == alone.program()
        cross = mtpcore.link(mtpcore.Context(model, 32, threads=1))
        cross.prepare()
        (drafter,) = cross.drafters.values()
        assert (drafter.spec.name != "lookup") == beside.used
