"""What newcomers try first: each mistake is answered by one error that says what to do."""

import pytest
from harness.hashed import HashBackend, HashModel

from mtpcore import Batch, BatchError, Context, Generator, LinkError, link


@pytest.fixture
def context():
    return Context(HashModel(), 64, backend=HashBackend())


def test_text_is_no_prompt(context):
    with pytest.raises(BatchError, match=r"tokenizer\.encode") as caught:
        list(Generator(context).generate("def x"))
    assert caught.value.got == "text"


def test_a_list_is_no_batch(context):
    with pytest.raises(BatchError, match=r"Batch\.of"):
        context.process([1, 2, 3])


def test_one_tap_may_stand_alone():
    context = Context(HashModel(), 64, backend=HashBackend(), taps="hidden")
    assert context.process(Batch.of([1, 2])).tap("hidden").shape == (2, 4)


def test_settings_are_checked_at_once(context):
    with pytest.raises(BatchError, match="coupled, argmax"):
        Generator(context, draft_sampler="couple")
    with pytest.raises(BatchError, match="number of tokens"):
        Generator(context, draft=-1)


def test_a_name_is_no_context():
    with pytest.raises(LinkError, match="load_model"):
        link("demo")


def test_a_target_starts_at_zero(context):
    with pytest.raises(BatchError, match="continue the sequence") as caught:
        context.process(Batch.of([1, 2], pos=5))
    assert (caught.value.wanted, caught.value.got) == (0, 5)
    assert context.length(0) == 0


def test_objects_show_what_they_are(context):
    output = context.process(Batch.of([1, 2]))
    cross = link(Context(HashModel(), 64, backend=HashBackend()))
    assert repr(output) == "Output(2 rows: logits (1, 13))"
    assert repr(Batch.of([1, 2])) == "Batch(2 rows of sequences [0], 1 outputs)"
    assert "hashed" in repr(context)
    assert repr(cross) == "Cross(llm, draft)"
    assert "0 running" in repr(Generator(cross))
