"""``mtpcore run``: write a text, and show what drafting did for it."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from mtpcore.cli import options as shared
from mtpcore.cli.prompts import read_prompt
from mtpcore.cli.report import (
    compare,
    describe,
    describe_settings,
    first_difference,
    name_drafter,
    plain_stats,
)
from mtpcore.cli.session import Session, finish, make_context, open_model, open_session
from mtpcore.cli.terminal import LiveText, note, paint, uses_colour
from mtpcore.decoding import Generator, Request
from mtpcore.errors import CapacityError
from mtpcore.runtime.model import Model
from mtpcore.sampling import Sampling

__all__ = ["EXAMPLES", "SUMMARY", "add_options", "execute"]

SUMMARY = "Continue a text; accepted drafts are green on a terminal"
EXAMPLES = """examples:
  mtpcore run demo "def read_config(path):" --draft 3
  mtpcore run demo "def read_config(path):" --draft 3 --compare
  mtpcore run demo "def read_config(path):" --temp 0 --draft-tree 4,4,12
  mtpcore run model.gguf -f prompt.txt -n 200 --temp 0.8 --top-k 40 --seed 7
  mtpcore run model.gguf --chat "Why is the sky blue?"
  mtpcore run trunk.gguf "Once upon a time" --mtp-path head.gguf --draft 2
  mtpcore run model.gguf --prompt-tokens 1,2,3 --json | jq .stats.acceptance
"""
_INTERRUPTED = 130


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    shared.add_model_options(parser)
    shared.add_prompt_options(parser)
    text = parser.add_argument_group("text")
    text.add_argument(
        "--chat", action="store_true", help="put the prompt into the model's chat template"
    )
    text.add_argument(
        "-n",
        "--predict",
        "--n-predict",
        type=shared.whole(-1),
        default=128,
        metavar="N",
        help="most tokens to generate; -1: until the context is full, or until Ctrl-C where it is "
        "shifted (default: %(default)s)",
    )
    text.add_argument(
        "--stop",
        type=shared.text_of,
        action="append",
        default=[],
        metavar="TEXT",
        help="stop string: the text ends before it; repeatable",
    )
    text.add_argument("--ignore-eos", action="store_true", help="continue after end-of-text tokens")
    shared.add_room_options(text)
    shared.add_draft_options(parser)
    shared.add_sampling_options(parser)
    shared.add_context_options(parser)
    output = parser.add_argument_group("output")
    output.add_argument(
        "--compare",
        action="store_true",
        help="also decode without drafts; say whether the texts are equal and which was faster",
    )
    output.add_argument(
        "--color", choices=("auto", "always", "never"), default="auto", help="default: auto"
    )
    output.add_argument(
        "--json", action="store_true", help="print one object: text, tokens, prompt_tokens, stats"
    )


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    if "" in options.stop:
        options.parser.error("--stop: wanted a text, got an empty one")
    shared.check_prompt(options)
    sampling = shared.sampling_of(options)
    with open_model(options) as model:
        prompt = read_prompt(options, model)
        _note_template(options, model)
        n_ctx = _count_places(options, model, len(prompt))
        session = open_session(options, model, n_ctx, pack=options.compare)
        generator = Generator(
            session.cross,
            sampling=sampling,
            draft=session.draft_or_auto,
            draft_sampler=options.draft_sampler,
            p_min=options.p_min,
        )
        request = _add(generator, prompt, options)
        interrupted = _write(generator, request, session, options)
        if interrupted and request.n_prefilled < len(prompt):
            note(f"interrupted: read {request.n_prefilled:,} of {len(prompt):,} prompt tokens")
        _report(options, session, generator)
        result = _describe(request, generator, session)
        failed = False
        if options.compare and not interrupted:
            failed = _compare(options, sampling, session, request, generator, result)
        if options.json:
            print(json.dumps(result))
    return _INTERRUPTED if interrupted else int(failed)


def _note_template(options: argparse.Namespace, model: Model) -> None:
    """Say that a prompt that is a text could go into the chat template."""
    has_template = "tokenizer.chat_template" in model.metadata
    if has_template and not options.chat and options.prompt_tokens is None:
        note("the model has a chat template; --chat puts the prompt into it")


def _report(options: argparse.Namespace, session: Session, generator: Generator) -> None:
    """Say how fast it was, and what drafting did for it."""
    drafter = name_drafter(describe_settings(session, generator))
    lines = describe(generator.stats, drafter, verbose=options.verbose).splitlines()
    if options.seed is None and generator.sampling.temperature:
        lines[0] += f" (again with --seed {generator.sampling.seed})"
    note("\n         ".join(lines))


def _count_places(options: argparse.Namespace, model: Model, n_prompt: int) -> int:
    """Return the context's size: for prompt and text together, even where an encoder reads."""
    has_encoder = model.spec is not None and bool(model.spec.encoder)
    if options.ctx_size is not None:
        n_ctx: int = options.ctx_size
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
        n_ctx = max(getattr(model.hparams, "n_ctx_train", 0), n_prompt + 1)
    else:
        n_ctx = n_prompt + options.predict
    return max(n_ctx, 1)


def _add(generator: Generator, prompt: list[int], options: argparse.Namespace) -> Request:
    return generator.add(
        prompt,
        max_tokens=None if options.predict < 0 else options.predict,
        stop=options.stop,
        ignore_eos=options.ignore_eos,
        when_full=options.when_full,
        n_keep=options.keep,
    )


def _write(
    generator: Generator, request: Request, session: Session, options: argparse.Namespace
) -> bool:
    """Write the text while it is made; return whether it was interrupted."""
    live = None
    if not options.json:
        colour = uses_colour(options.color, sys.stdout)
        live = LiveText(request, session.model.tokenizer, sys.stdout, colour)
        if sys.stdout.isatty() and options.prompt and not (options.chat or request.source):
            sys.stdout.write(paint(options.prompt, "bold") if colour else options.prompt)
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
    sampling: Sampling,
    session: Session,
    request: Request,
    generator: Generator,
    result: dict[str, Any],
) -> bool:
    """Also decode without drafts; return whether the guarantee was broken."""
    llm = make_context(options, session.model, session.llm.n_ctx)
    plain = Generator(llm, sampling=sampling)
    again = _add(plain, request.given, options)
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
