"""What newcomers get wrong at first is answered at once, in words that help."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness.hashed import HashBackend, HashModel

import mtpcore


@pytest.fixture(scope="module")
def model():
    return mtpcore.load_model("demo")


@pytest.fixture
def context():
    return mtpcore.Context(HashModel(), 64, backend=HashBackend())


def test_a_path_in_place_of_a_model():
    with pytest.raises(mtpcore.BatchError, match="load_model"):
        mtpcore.Context("demo")  # type: ignore[arg-type]


def test_a_model_in_place_of_a_cross(model):
    with pytest.raises(mtpcore.LinkError, match="Context"):
        mtpcore.Generator(model)


def test_a_number_in_place_of_a_drafter(model):
    with pytest.raises(mtpcore.LinkError, match="a name"):
        mtpcore.link(mtpcore.Context(model), drafter=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("sampling", [0.8, {"temperature": 0.8}])
def test_settings_that_are_no_sampling_are_refused_before_they_run(model, sampling):
    generator = mtpcore.Generator(mtpcore.Context(model))
    with pytest.raises(mtpcore.SamplingError, match="Sampling"):
        generator.add([1, 2], sampling=sampling)
    assert not generator.active


def test_a_draft_model_that_is_not_given(model):
    """The model would draft for itself, at its own cost."""
    with pytest.raises(mtpcore.LinkError, match="no draft model") as caught:
        mtpcore.link(mtpcore.Context(model), "draft_model")
    assert "draft_model=" in caught.value.fix


def test_a_list_in_place_of_a_sequence(model):
    cross = mtpcore.link(mtpcore.Context(model, n_seq_max=2))
    cross.llm.process(mtpcore.Batch.of([719, 590]))
    with pytest.raises(mtpcore.BatchError, match="no such sequence") as caught:
        cross.draft([0, 1], 3)  # type: ignore[call-overload]
    assert caught.value.fix == "give one of these numbers, or make n_seq_max larger"


def test_one_length_beside_a_length_for_each_sequence(model):
    cross = mtpcore.link(mtpcore.Context(model))
    cross.llm.process(mtpcore.Batch.of([719, 590]))
    with pytest.raises(mtpcore.BatchError, match="one length beside") as caught:
        cross.draft({0: 3}, 5)  # type: ignore[call-overload]
    assert caught.value.fix == "leave k out"
    assert len(cross.draft({0: 3})[0]) == 3


def test_a_layer_that_is_not_there(model):
    with pytest.raises(mtpcore.GraphError, match="taps that the graph does not offer") as caught:
        mtpcore.Context(model, taps=["layer_input:99"])
    assert caught.value.got == "layer_input:99"
    assert "layer_input:2" in caught.value.wanted


def test_what_to_do_after_a_rollback_is_said(model):
    cross = mtpcore.link(mtpcore.Context(model))
    with pytest.raises(mtpcore.BatchError, match="nothing to continue from") as caught:
        cross.draft(0, 3)
    assert caught.value.fix == "process() tokens with outputs='last' first"
    cross.llm.process(mtpcore.Batch.of([719, 590]))
    chosen = cross.draft(0, 3)
    cross.rollback(0, 2)
    with pytest.raises(mtpcore.BatchError, match="nothing to continue from") as caught:
        cross.draft(0, 3)
    assert caught.value.fix == (
        "process() what follows with outputs='last', or rollback() to 1 and process() the last "
        "token again"
    )
    cross.rollback(0, 1)
    cross.llm.process(mtpcore.Batch.of([590], pos=1))
    assert cross.draft(0, 3) == chosen


def test_neither_a_state_nor_a_path(model):
    with pytest.raises(mtpcore.StateError) as caught:
        mtpcore.Context(model).load(0, None)  # type: ignore[arg-type]
    assert caught.value.wanted == "bytes, or a path"


def test_a_request_shows_how_far_it_is(model):
    generator = mtpcore.Generator(mtpcore.Context(model))
    request = generator.add([719, 590], max_tokens=1)
    assert repr(request) == "Request(2 prompt tokens, 0 tokens, finish_reason=None)"
    generator.step()
    assert repr(request) == "Request(2 prompt tokens, 1 tokens, finish_reason='length')"


def test_text_is_no_prompt(context):
    with pytest.raises(mtpcore.BatchError, match=r"tokenizer\.encode") as caught:
        list(mtpcore.Generator(context).generate("def x"))
    assert caught.value.got == "text"


def test_a_list_is_no_batch(context):
    with pytest.raises(mtpcore.BatchError, match=r"Batch\.of"):
        context.process([1, 2, 3])


def test_one_tap_may_stand_alone():
    context = mtpcore.Context(HashModel(), 64, backend=HashBackend(), taps="hidden")
    assert context.process(mtpcore.Batch.of([1, 2])).tap("hidden").shape == (2, 4)


def test_settings_are_checked_at_once(context):
    with pytest.raises(mtpcore.BatchError, match="coupled, argmax"):
        mtpcore.Generator(context, draft_sampler="couple")
    with pytest.raises(mtpcore.BatchError, match="number of tokens"):
        mtpcore.Generator(context, draft=-1)


def test_a_name_is_no_context():
    with pytest.raises(mtpcore.LinkError, match="load_model"):
        mtpcore.link("demo")


def test_a_target_starts_at_zero(context):
    with pytest.raises(mtpcore.BatchError, match="continue the sequence") as caught:
        context.process(mtpcore.Batch.of([1, 2], pos=5))
    assert (caught.value.wanted, caught.value.got) == (0, 5)
    assert context.length(0) == 0


def test_objects_show_what_they_are(context):
    output = context.process(mtpcore.Batch.of([1, 2]))
    cross = mtpcore.link(mtpcore.Context(HashModel(), 64, backend=HashBackend()))
    assert repr(output) == "Output(2 rows: logits (1, 13))"
    assert repr(mtpcore.Batch.of([1, 2])) == "Batch(2 rows of sequences [0], 1 outputs)"
    assert "hashed" in repr(context)
    assert repr(cross) == "Cross(llm, draft)"
    assert "0 running" in repr(mtpcore.Generator(cross))


def test_the_source_folder_without_compiled_modules_says_so(tmp_path):
    copy = tmp_path / "mtpcore"
    shutil.copytree(Path(mtpcore.__file__).parent, copy, ignore=shutil.ignore_patterns("*.so"))
    ran = subprocess.run(
        [sys.executable, "-c", "from mtpcore import Context"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert "pip install -e ." in ran.stderr.splitlines()[-1]
