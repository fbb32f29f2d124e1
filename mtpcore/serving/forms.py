"""The form of texts that a request asks for: schemas, grammars, and tools that must be called."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio.to_thread

from mtpcore.errors import SamplingError
from mtpcore.lm import find_form, read_response_format
from mtpcore.sampling import Grammar
from mtpcore.serving.answers import Service
from mtpcore.serving.fields import SamplingFields
from mtpcore.serving.prompts import TemplateInput
from mtpcore.serving.refusals import Refusal, refusal_of

__all__ = ["form_of_answer", "form_of_text"]


async def form_of_text(
    service: Service, fields: SamplingFields, asked: object = None, param: str = ""
) -> dict[str, Any]:
    """Return the option of a text that is to have a form from its first token on.

    Parameters
    ----------
    service : Service
    fields : SamplingFields
        With those of llama.cpp's server and of vLLM.
    asked : mapping, optional
        What the API's own field says, as OpenAI's ``response_format``.
    param : str
        The name of that field, for errors.

    Raises
    ------
    Refusal
        Two forms, or one that cannot be used.
    """

    def make() -> Grammar | None:
        return _read(fields, asked)

    return await _in_thread(service, make, param)


async def form_of_answer(
    service: Service,
    conversation: TemplateInput,
    prompt: Sequence[int],
    fields: SamplingFields,
    asked: object = None,
    param: str = "",
    *,
    choice: str | Mapping[str, Any] = "auto",
    most_calls: int | None = None,
) -> dict[str, Any]:
    """Return the option of an answer whose part after the reasoning is to have a form.

    That is where ``find_form`` says so, as for ``LM.chat``.

    Parameters
    ----------
    service, fields, asked, param
        As ``form_of_text`` takes them.
    conversation : TemplateInput
        Its tools may be called.
    prompt : sequence of int
        The conversation's tokens.
    choice : str or mapping
        What the request says of tools, as ``find_form`` takes it.
    most_calls : int, optional
        1: no second call.

    Raises
    ------
    Refusal
        As ``form_of_text``; a tool that there is not, or a model of which it is not known how it
        writes calls.
    """
    tools = conversation.tools

    def make() -> Grammar | None:
        said = _read(fields, asked)
        return find_form(
            *(service.lm.model, prompt, said),
            tools=tools,
            choice=choice,
            calls_several=most_calls != 1,
        )

    is_free = choice in ("auto", "none")
    return await _in_thread(service, make, param if is_free else "tool_choice")


async def _in_thread(
    service: Service, make: Callable[[], Grammar | None], param: str
) -> dict[str, Any]:
    """Make a grammar and compile it, which may take a while, in a thread of its own."""

    def compile_it() -> Grammar | None:
        grammar = make()
        if grammar is not None:
            service.lm.model.grammars.matcher(grammar)
        return grammar

    try:
        grammar = await anyio.to_thread.run_sync(compile_it)
    except SamplingError as error:
        raise Refusal(400, str(error), param=param or None) from error
    except Exception as error:
        raise refusal_of(error, is_asked=True) from error
    return {} if grammar is None else {"grammar": grammar}


def _read(fields: SamplingFields, asked: object) -> Grammar | None:
    """Return the one form that a request asks for."""
    outputs = fields.structured_outputs
    found = [read_response_format(asked)]
    if fields.grammar:
        found.append(Grammar(fields.grammar))
    if fields.json_schema:
        found.append(Grammar.of_schema(fields.json_schema))
    if outputs is not None:
        if outputs.json is not None:
            found.append(Grammar.of_schema(outputs.json))
        if outputs.regex is not None:
            found.append(Grammar.of_regex(outputs.regex))
        if outputs.choice is not None:
            words = (json.dumps(word, ensure_ascii=False) for word in outputs.choice)
            found.append(Grammar(f"start: {' | '.join(words)}"))
        if outputs.grammar is not None:
            found.append(Grammar(outputs.grammar))
    forms = [one for one in found if one is not None]
    if len(forms) > 1:
        raise SamplingError("a text has one form", where="the request", got=f"{len(forms)} of them")
    return forms[0] if forms else None
