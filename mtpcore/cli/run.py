"""``mtpcore run``: write a text, and show what drafting did for it."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from mtpcore.cli import options as shared
from mtpcore.cli.lora import add_adapter_options, scales_of
from mtpcore.cli.prompts import TokenizedPrompt, read_prompt
from mtpcore.cli.report import (
    compare,
    describe,
    describe_settings,
    first_difference,
    name_drafter,
    plain_stats,
)
from mtpcore.cli.samplers import (
    add_sampling_options,
    given_sampling,
    sampling_of,
    spell_settings,
)
from mtpcore.cli.session import Session, finish, make_context, open_model, open_session
from mtpcore.cli.templates import add_template_options, take_template
from mtpcore.cli.terminal import LiveText, harmless, note, paint, uses_colour
from mtpcore.decoding import Generator, Request
from mtpcore.errors import CapacityError
from mtpcore.lm import answering, default_n_ctx
from mtpcore.runtime.model import Model

__all__ = ["EXAMPLES", "SUMMARY", "add_options", "execute"]

SUMMARY = "Answer a question or continue a text; accepted drafts are green on a terminal"
EXAMPLES = """examples:
  mtpcore run demo "def read_config(path):" --draft 3
  mtpcore run demo "def read_config(path):" --draft 3 --compare
  mtpcore run demo "def read_config(path):" --temp 0 --draft-tree 4,4,12
  mtpcore run model.gguf -f prompt.txt -n 200 --temp 0.7 --seed 7
  mtpcore run model.gguf "Why is the sky blue?"
  git diff | mtpcore run model.gguf "Write a commit message."
  mtpcore run model.gguf --raw "Once upon a time"
  mtpcore run trunk.gguf "Once upon a time" --mtp-path head.gguf --draft 2
  mtpcore run model.gguf --prompt-tokens 1,2,3 --json | jq .stats.acceptance
"""
_INTERRUPTED = 130
_LENGTH = 128
_ROOM = 1024  # for an answer, where a prompt fills the usual context


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    shared.add_model_options(parser)
    shared.add_prompt_options(parser)
    text = parser.add_argument_group("text")
    template = text.add_mutually_exclusive_group()
    template.add_argument(
        "--chat",
        action="store_true",
        default=None,
        help="put the prompt into the model's chat template (the default where the file has one)",
    )
    template.add_argument(
        "--raw", dest="chat", action="store_false", help="continue the prompt as it is"
    )
    shared.add_system_option(text)
    text.add_argument(
        "-n",
        "--predict",
        "--n-predict",
        type=shared.whole(-1),
        metavar="N",
        help="most tokens to generate; -1: until the text ends or the context is full, or until "
        f"Ctrl-C where it is shifted (default: {_LENGTH}; -1 in a chat template)",
    )
    text.add_argument(
        "--stop",
        type=shared.text_of,
        action="append",
        default=[],
        metavar="TEXT",
        help="stop string: the text ends before it, as before <|im_start|>; repeatable",
    )
    text.add_argument("--ignore-eos", action="store_true", help="continue after end-of-text tokens")
    shared.add_text_rules(text)
    shared.add_special_option(text)
    shared.add_room_options(text)
    add_template_options(parser)
    shared.add_draft_options(parser)
    add_sampling_options(parser)
    shared.add_form_options(parser)
    add_adapter_options(parser)
    shared.add_context_options(parser)
    output = parser.add_argument_group("output")
    output.add_argument(
        "--compare",
        action="store_true",
        help="also decode without drafts; say whether the texts are equal and which was faster",
    )
    shared.add_colour_option(output)
    output.add_argument(
        "--json", action="store_true", help="print one object: text, tokens, prompt_tokens, stats"
    )


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    if "" in options.stop:
        options.parser.error("--stop: wanted a text, got an empty one")
    shared.check_prompt(options)
    given = given_sampling(options)
    with open_model(options) as model:
        take_template(options, model)
        prompt = read_prompt(options, model)
        sampling = sampling_of(given, model)
        n_ctx = _count_places(options, model, prompt)
        session = open_session(options, model, n_ctx, pack=options.compare)
        generator = Generator(
            session.cross,
            sampling=sampling,
            draft=session.draft_or_auto,
            draft_sampler=options.draft_sampler,
            p_min=options.p_min,
            adapters=scales_of(options, session.llm),
        )
        request = _add(generator, prompt.tokens, options, is_answer=prompt.is_chat)
        interrupted = _write(generator, request, session, options, prompt.text)
        n_prompt = len(prompt.tokens)
        if interrupted and request.n_prefilled < n_prompt:
            note(f"interrupted: read {request.n_prefilled:,} of {n_prompt:,} prompt tokens")
        _report(options, session, generator, request, prompt)
        result = _describe(request, generator, session)
        failed = False
        if options.compare and not interrupted:
            failed = _compare(options, session, request, generator, result)
        if options.json:
            print(json.dumps(result))
    return _INTERRUPTED if interrupted else int(failed)


def _report(
    options: argparse.Namespace,
    session: Session,
    generator: Generator,
    request: Request,
    prompt: TokenizedPrompt,
) -> None:
    """Say how fast it was, what cut the text, and what drafting did for it."""
    drafter = name_drafter(describe_settings(session, generator))
    lines = describe(generator.stats, drafter, verbose=options.verbose).splitlines()
    if request.finish_reason == "length":
        is_full = len(request.tokens) != options.predict
        lines[0] += (
            f", cut as the context {_spell_full(options, session)}"
            if is_full
            else (f", cut by -n {options.predict}")
        )
    if request.finish_reason == "no_token":
        lines[0] += ", ended as no token was left to choose"
    if options.seed is None and generator.sampling.temperature:
        lines[0] += f" (again with --seed {generator.sampling.seed})"
    if options.verbose:
        lines.append(f"sampling: {spell_settings(generator.sampling)}")
        if prompt.is_chat:
            lines.append("the prompt was put into the chat template; --raw leaves it as it is")
    note("\n         ".join(lines))


def _spell_full(options: argparse.Namespace, session: Session) -> str:
    return f"of {session.llm.n_ctx:,} tokens is full; -c N makes room"


def _count_places(options: argparse.Namespace, model: Model, prompt: TokenizedPrompt) -> int:
    """Return the context's size: for prompt and text together, even where an encoder reads.

    Where nothing says how long the text is to be, ``options.predict`` is set.
    """
    has_encoder = model.spec is not None and bool(model.spec.encoder)
    n_prompt, is_open = len(prompt.tokens), options.predict is None and prompt.is_chat
    if options.predict is None:
        options.predict = -1 if is_open else _LENGTH
    n_ctx = shared.context_size(options, model)
    if n_ctx is not None:
        if n_prompt > n_ctx:
            raise CapacityError(
                "the prompt is longer than the context",
                wanted=f"at most {n_ctx} tokens",
                got=n_prompt,
                fix=f"-c {n_prompt + max(options.predict, 1)}, or leave -c out",
            )
        n_before = 1 if has_encoder else n_prompt
        room = n_ctx - n_before + 1  # the last token need not be processed
        if options.predict > room and options.when_full == "stop":
            note(f"-n {options.predict}: at most {room} tokens, as more do not fit into -c {n_ctx}")
    elif options.predict < 0:
        trained = getattr(model.hparams, "n_ctx_train", 0)
        wanted = max(default_n_ctx(model), n_prompt + _ROOM) if is_open else trained
        n_ctx = max(min(wanted, trained or wanted), n_prompt + 1)
    else:
        n_ctx = n_prompt + options.predict
    return max(n_ctx, 1)


def _add(
    generator: Generator, prompt: list[int], options: argparse.Namespace, *, is_answer: bool
) -> Request:
    sampling = generator.sampling
    if is_answer:
        sampling = answering(generator.cross.llm.model, prompt, sampling)
    return generator.add(
        prompt,
        sampling=sampling,
        max_tokens=None if options.predict < 0 else options.predict,
        stop=options.stop,
        **shared.text_rules(options),
        ignore_eos=options.ignore_eos,
        special=options.special,
        when_full=options.when_full,
        n_keep=options.keep,
    )


def _write(
    generator: Generator,
    request: Request,
    session: Session,
    options: argparse.Namespace,
    before: str,
) -> bool:
    """Write the text while it is made, after a prompt; return whether it was interrupted."""
    live = None
    if not options.json:
        colour = uses_colour(options.color, sys.stdout)
        tokenizer = session.model.tokenizer if session.model.has_tokenizer else None
        live = LiveText(request, tokenizer, sys.stdout, colour)
        if sys.stdout.isatty() and not request.source:
            sys.stdout.write(paint(harmless(before), "bold") if colour else harmless(before))
    interrupted = False
    try:
        finish(generator, request, live.update if live else None)
    except KeyboardInterrupt:
        interrupted = True
        request.end("cancelled")
    if live:
        live.update()
        live.end()
    return interrupted


def _describe(request: Request, generator: Generator, session: Session) -> dict[str, Any]:
    return {
        "text": request.text,
        "tokens": request.tokens,
        "prompt_tokens": request.given,
        "finish_reason": request.finish_reason,
        "stats": plain_stats(generator.stats),
        "settings": describe_settings(session, generator),
    }


def _compare(
    options: argparse.Namespace,
    session: Session,
    request: Request,
    generator: Generator,
    result: dict[str, Any],
) -> bool:
    """Also decode without drafts; return whether the guarantee was broken."""
    llm = make_context(options, session.model, session.llm.n_ctx)
    plain = Generator(llm, sampling=request.sampling, adapters=scales_of(options, llm))
    again = _add(plain, request.given, options, is_answer=False)
    finish(plain, again)
    difference = first_difference(request.tokens, again.tokens)
    note(compare(difference, generator.stats, plain.stats, llm.guarantee))
    result["compare"] = {
        "equal": difference is None,
        "first_difference": difference,
        "text": again.text,
        "tokens": again.tokens,
        "stats": plain_stats(plain.stats),
    }
    return difference is not None and llm.guarantee.startswith("exact")
