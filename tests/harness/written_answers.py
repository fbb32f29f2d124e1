"""Answers with calls of tools as chat templates write them, read back in pieces of any length.

``python -m harness.written_answers FOLDER`` does so with every ``*.jinja`` file of a folder. For
each template it prints the form of its calls, and of each kind of answer whether it is read: whole,
sign by sign and in random pieces. Then it prints how many templates have each form.
"""

import random
import re
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

from mtpcore_gemma4 import GEMMA4
from mtpcore_gpt_oss import GPT_OSS

from harness.chat_templates import TOKENS, USER, rendered
from mtpcore.gguf import ChatTemplate
from mtpcore.gguf.answer_format import derive_format
from mtpcore.gguf.answer_parser import AnswerParser
from mtpcore.gguf.response_template import ResponseTemplate
from mtpcore.gguf.template_parser import TemplateAnswerParser
from mtpcore.models.lfm2 import LFM2

PARAMETERS = {
    "place": {"type": "string", "description": "Where."},
    "days": {"type": "integer", "description": "How many."},
    "sure": {"type": "boolean", "description": "Whether it must be."},
    "trip": {
        "type": "object",
        "description": "Which way.",
        "additionalProperties": {"type": "array", "items": {"type": "string"}},
    },
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "A tool.",
            "parameters": {"type": "object", "properties": PARAMETERS, "required": ["place"]},
        },
    }
    for name in ("weather", "get_time")
]
THOUGHT, SAID = "I need to look.", "Let me look."
FIRST = ("weather", {"place": "Zürich", "days": 2})
SECOND = ("get_time", {"place": "a, b", "sure": True, "trip": {"stops": ["x", "it's"]}})
ANSWERS = {
    "thoughts": (THOUGHT, SAID, []),
    "a call": ("", "", [FIRST]),
    "calls": ("", "", [FIRST, SECOND]),
    "text and a call": ("", SAID, [FIRST]),
    "thoughts and a call": (THOUGHT, "", [FIRST]),
    "all": (THOUGHT, SAID, [FIRST, SECOND]),
}
"""Kinds of answers: reasoning, what is said, and calls."""
FORMS = {
    "json": "JSON with name and arguments",
    "named": "a name, then JSON",
    "tagged": "name and arguments between marks",
    "elements": "a name, then elements",
}


def message_of(reasoning, content, calls):
    """Return an answer as a message."""
    message = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call0000{i}",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for i, (name, arguments) in enumerate(calls)
        ]
    return message


def split_answer(template, form, message, tools):
    """Return a prompt and what a model writes after it to say a message; None: it cannot be told.

    A prompt may end with marks around thoughts that the conversation with the answer does not have,
    and that conversation may have more before the answer than the prompt.
    """
    prompt = rendered(template, [USER], tools=tools)
    bare = rendered(template, [USER], tools=tools, add_generation_prompt=False)
    whole = rendered(template, [USER, message], tools=tools, add_generation_prompt=False)
    if None in (prompt, bare, whole):
        return None
    header = prompt[n_common(prompt, bare) :]
    n_shared = n_common(prompt, whole)
    begin = whole.rfind("<", 0, n_shared)  # no mark is cut
    begin = begin if begin > whole.rfind(">", 0, n_shared) else n_shared
    if n_shared < len(prompt) - len(header):
        begin = whole.find(header, max(0, n_shared - len(header))) + len(header)
    text, thought = whole[begin:], message.get("reasoning_content")
    opens = thought and form.reasoning and prompt.rstrip().endswith(form.reasoning[0])
    return prompt if opens else whole[:begin], text


def n_common(one, other):
    """Return with how many equal characters two texts begin."""
    return next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


def in_pieces(parser, text, places):
    """Return the reasoning, what is said and the calls of a text that comes in pieces."""
    bounds = sorted({0, len(text), *places})
    parts = [part for begin, end in pairwise(bounds) for part in parser.feed(text[begin:end])]
    parts += parser.finish()
    reasoning, content = (
        "".join(part.text for part in parts if part.kind == kind).strip()
        for kind in ("reasoning", "content")
    )
    return reasoning, content, [(p.call.name, p.call.read_arguments()) for p in parts if p.call]


def response_template(template):
    """Return the response template of the family that a chat template is of; None: of none."""
    for family in (GEMMA4, GPT_OSS, LFM2):
        found = ResponseTemplate(family.response_template)
        if found.has_calls_of(template, ()) and found.begins(template):
            return found
    return None


def read_back(template):
    """Return of each kind of answer whether it is read as it was written.

    "cannot be told": the template refuses it, or leaves a part of it out, or writes it elsewhere.
    """
    form = derive_format(template)
    response, found = response_template(template), {}
    for name, (reasoning, content, calls) in ANSWERS.items():
        tools = TOOLS if calls else None
        said = split_answer(template, form, message_of(reasoning, content, calls), tools)
        words = [reasoning, content, *(call[0] for call in calls)]
        if said is None or not re.search(".*".join(map(re.escape, words)), said[1], re.DOTALL):
            found[name] = "cannot be told"
            continue
        prompt, text = said
        if not calls:
            text = text[: text.rindex(content) + len(content)]
        pieces = random.Random(name)
        ways = [(), range(len(text))]
        ways += [[pieces.randrange(len(text)) for _ in range(9)] for _ in range(20)]
        read = [
            in_pieces(
                AnswerParser(form, prompt, tools or ())
                if response is None
                else TemplateAnswerParser(
                    response, response.after_start(prompt) or "", tools or ()
                ),
                text,
                places,
            )
            for places in ways
        ]
        is_read = all(one == (reasoning, content, calls) for one in read)
        found[name] = "read" if is_read else "not read"
    return form, response, found


def main(folder):
    forms, answers = Counter(), Counter()
    for path in sorted(Path(folder).glob("*.jinja")):
        template = ChatTemplate(path.read_text("utf-8"), **TOKENS)
        form, response, found = read_back(template)
        if response is not None:
            kind = "a response template of the family"
        elif form.calls is not None:
            kind = FORMS[form.calls.kind]
        else:
            kind = "none"
        forms[kind] += 1
        answers.update(found.items())
        print(f"{path.stem}: {kind};", ", ".join(f"{one} {how}" for one, how in found.items()))
    for kind, n in forms.most_common():
        print(f"{n} {kind}")
    for (name, how), n in sorted(answers.items()):
        print(f"{name}: {n} {how}")


if __name__ == "__main__":
    main(*sys.argv[1:])
