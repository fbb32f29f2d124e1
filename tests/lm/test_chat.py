"""Conversations: the model's template, and no turn that is processed twice."""

import asyncio

import pytest
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

import mtpcore
from mtpcore import LM, BatchError, CapacityError, MtpcoreError
from mtpcore.lm.template_options import OF_TEMPLATES

OPTIONS = {"max_tokens": 12, "seed": 3, "ignore_eos": True}


@pytest.fixture
def lm(chat_model):
    with LM(chat_model, n_ctx=400, draft=2, threads=1) as made:
        yield made


def say(*contents):
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]


class Counter:
    """Counts the tokens that the model processes."""

    def __init__(self, lm, monkeypatch):
        runner = lm.generator.cross.llm.runner
        process, self.n = runner.process, 0

        def count(batch, *more, **named):
            self.n += len(batch)
            return process(batch, *more, **named)

        monkeypatch.setattr(runner, "process", count)

    def take(self):
        n, self.n = self.n, 0
        return n


def test_a_conversation_is_written_as_the_template_says(lm):
    messages = [{"role": "system", "content": "Be short."}, *say("hi")]
    text = "<tool>clock</tool>\n<system>Be short.\n<user>hi\nglad<assistant>"
    ids = lm.encode_chat(messages, tools=[{"name": "clock"}], template_options={"mood": "glad"})
    assert ids == lm.model.tokenizer.encode(text, add_special=False, parse_special=True)
    answer = lm.chat(
        messages, tools=[{"name": "clock"}], template_options={"mood": "glad"}, **OPTIONS
    )
    assert answer.text == lm.generate(ids, **OPTIONS).text
    assert answer.stats.prompt_tokens == len(ids)


def test_how_much_a_model_thinks_is_a_variable_of_the_template():
    model = mtpcore.load_model("demo")
    model.chat_template = mtpcore.gguf.ChatTemplate(
        "{{ enable_thinking | default('?') }} {{ reasoning_effort | default('?') }}"
    )
    with LM(model, n_ctx=50, draft=0, threads=1) as lm:

        def seen(**options):
            return lm.tokenizer.decode(lm.encode_chat("hi", **options))

        assert seen() == seen(reasoning_effort=None) == "? ?"
        assert seen(reasoning_effort="low") == "? low"
        assert seen(reasoning_effort="none") == "False ?"
        more = {"enable_thinking": True}
        assert seen(reasoning_effort="none", template_options=more) == "True ?"
        answer = lm.chat("hi", reasoning_effort="low", **OPTIONS)
        prompt = lm.encode_chat("hi", reasoning_effort="low")
        assert answer.text == lm.generate(prompt, **OPTIONS).text
        for wrong in (3, ""):
            with pytest.raises(MtpcoreError, match="reasoning_effort is a word"):
                lm.chat("hi", reasoning_effort=wrong)


def test_an_answer_comes_in_pieces(lm):
    with lm.chat(say("hi"), stream=True, **OPTIONS) as stream:
        pieces = list(stream)
    assert len(pieces) > 1
    assert "".join(pieces) == lm.chat(say("hi"), **OPTIONS).text


def test_a_grown_conversation_processes_what_is_new(lm, monkeypatch):
    """The longest prefix that it has in common with what was processed is not processed again."""
    counter = Counter(lm, monkeypatch)
    first = lm.chat(say("Tell me of the sea."), draft=0, **OPTIONS)
    prompt = lm.encode_chat(say("Tell me of the sea."))
    assert counter.take() == len(prompt) + 11  # the last token of an answer is not processed
    grown = say("Tell me of the sea.", first.text, "And of the land?")
    ids = lm.encode_chat(grown)
    seen = [*prompt, *first.tokens[:-1]]
    common = next(
        i for i, (one, other) in enumerate(zip(ids, [*seen, -1], strict=False)) if one != other
    )
    assert common >= len(prompt)
    second = lm.chat(grown, draft=0, **OPTIONS)
    assert counter.take() == len(ids) - common + 11
    assert (second.stats.cached_tokens, second.stats.prompt_tokens) == (common, len(ids))


@pytest.mark.parametrize("size", [None, 0])
def test_without_a_prefix_cache_every_turn_is_processed_whole(chat_model, size):
    with LM(chat_model, n_ctx=400, draft=2, prefix_cache=size) as lm:
        texts = [lm.chat(say("Tell me of the sea."), **OPTIONS) for _ in range(2)]
    assert texts[0].tokens == texts[1].tokens
    assert [text.stats.cached_tokens for text in texts] == [0, 0]


@searching(12)
@given(
    questions=st.lists(st.text("ab é漢\n", max_size=8), min_size=2, max_size=5),
    cut=st.integers(0, 12),
    draft=st.integers(0, 3),
    beside=st.booleans(),
)
def test_reuse_gives_the_text_of_a_new_lm(chat_model, questions, cut, draft, beside):
    """Also where an answer was cut, another text came between, or a turn was taken back."""
    with LM(chat_model, n_ctx=400, draft=draft, n_seq_max=2, threads=1) as lm:
        said = []
        for question in questions:
            said.append(question)
            answer = lm.chat(say(*said), **OPTIONS)
            with LM(chat_model, n_ctx=400, draft=0, threads=1) as fresh:
                wanted = fresh.chat(say(*said), **OPTIONS)
            assert (answer.text, answer.tokens) == (wanted.text, wanted.tokens)
            said.append(answer.text[:cut] if len(said) == 3 else answer.text)
            if beside:
                lm.generate(["import os\n", "class A:"], **OPTIONS)
            if len(said) == 6:
                del said[2:4]


def test_a_text_is_what_a_user_says(lm):
    assert lm.encode_chat("hi") == lm.encode_chat(say("hi"))
    assert lm.chat("hi", **OPTIONS).text == lm.chat(say("hi"), **OPTIONS).text
    assert "".join(lm.chat("hi", stream=True, **OPTIONS)) == lm.chat("hi", **OPTIONS).text


@pytest.mark.parametrize("talks", [["one", "two"], [say("one"), say("two")], [say("one"), "two"]])
def test_several_conversations_are_answered_at_once(lm, talks):
    """Each as alone."""
    answers = lm.chat(talks, **OPTIONS)
    assert [one.text for one in answers] == [lm.chat(talk, **OPTIONS).text for talk in talks]
    (alone,) = lm.chat(talks[:1], **OPTIONS)
    assert alone.text == answers[0].text


def test_an_event_loop_is_free_while_conversations_are_answered(lm):
    async def main():
        one, many, stream = await asyncio.gather(
            lm.achat("one", **OPTIONS),
            lm.achat(["one", "two"], **OPTIONS),
            lm.achat("one", stream=True, **OPTIONS),
        )
        pieces = [piece async for piece in stream]
        return one.text, [each.text for each in many], "".join(pieces)

    wanted = [lm.chat(text, **OPTIONS).text for text in ("one", "two")]
    assert asyncio.run(main()) == (wanted[0], wanted, wanted[0])


def test_the_beginning_of_an_answer_is_continued(lm):
    said = say("hi", "The sea is")
    text = "<user>hi\n<assistant>The sea is"
    ids = lm.tokenizer.encode(text, add_special=False, parse_special=True)
    assert lm.encode_chat(said, continue_final_message=True) == ids
    answer = lm.chat(said, continue_final_message=True, **OPTIONS)
    assert answer.text == lm.generate(ids, **OPTIONS).text


def test_which_conversation_cannot_be_said_is_told(lm):
    with pytest.raises(MtpcoreError, match=r"messages\[1\] of 2: .*nobody may speak"):
        lm.chat(["hi", [{"role": "nobody", "content": "x"}]])
    with pytest.raises(CapacityError, match=r"prompts\[1\] of 2: the prompt is longer"):
        lm.chat(["hi", "x " * 400])
    with pytest.raises(BatchError, match="a stream answers one conversation"):
        lm.chat(["hi", "ho"], stream=True)
    with pytest.raises(BatchError, match="a stream answers one conversation"):
        asyncio.run(lm.achat(["hi", "ho"], stream=True))


def test_conversations_are_prompts_like_others(lm):
    """Many at once, or in an event loop."""
    talks = [say("one"), say("two"), say("three")]
    together = lm.generate([lm.encode_chat(talk) for talk in talks], **OPTIONS)
    assert [one.text for one in together] == [lm.chat(talk, **OPTIONS).text for talk in talks]


def test_what_cannot_be_said_is_an_error(lm):
    with pytest.raises(MtpcoreError, match="nobody may speak"):
        lm.chat([{"role": "nobody", "content": "x"}])
    with pytest.raises(MtpcoreError, match="template"):
        lm.chat([{"role": "user", "content": object()}])
    with pytest.raises(MtpcoreError, match="names"):
        lm.chat(say("x"), template_options=3)
    with pytest.raises(MtpcoreError, match="stream is yes or no"):
        lm.chat(say("x"), stream=3)


@pytest.mark.parametrize("name", [*sorted(OF_TEMPLATES), "strftime_now", "self"])
def test_what_is_said_in_other_ways_is_no_option_of_a_template(lm, name):
    with pytest.raises(MtpcoreError, match=f"no options of a template; got {name}"):
        lm.chat(say("x"), template_options={name: "mine", "mood": "glad"})


def test_a_model_without_a_template_says_so():
    with (
        LM("demo", n_ctx=50) as lm,
        pytest.raises(MtpcoreError, match="no chat template") as caught,
    ):
        lm.chat(say("hi"))
    assert "generate" in caught.value.fix


def test_control_tokens_of_the_template_are_tokens(chat_model):
    model = mtpcore.load_model("demo")
    end = model.tokenizer.decode([model.tokenizer.eos], special=True)
    model.chat_template = mtpcore.gguf.ChatTemplate(
        "{{ messages[0].content }}{{ eos_token }}", eos=end
    )
    with LM(model, n_ctx=50) as lm:
        assert lm.encode_chat(say("hi"))[-1] == model.tokenizer.eos
