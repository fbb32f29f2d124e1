"""``mtpcore chat``: a conversation at the terminal."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

import msgspec

from mtpcore.boundary.atomic import replacing
from mtpcore.cli import options as shared
from mtpcore.cli.lora import add_adapter_options, scales_of
from mtpcore.cli.report import describe, describe_settings, name_drafter
from mtpcore.cli.samplers import (
    FIELDS,
    add_sampling_options,
    given_sampling,
    sampling_of,
    spell_settings,
)
from mtpcore.cli.session import Session, open_model, open_session, show_reading
from mtpcore.cli.templates import (
    add_response_options,
    add_template_options,
    take_response_template,
    take_template,
    template_options,
)
from mtpcore.cli.terminal import harmless, note, paint, uses_colour
from mtpcore.cli.turns import Turns
from mtpcore.decoding import Generator
from mtpcore.errors import MtpcoreError, SamplingError
from mtpcore.lm import LM, Completion, Piece, answering, default_n_ctx
from mtpcore.lm.answer_parsing import AnswerParsing

__all__ = ["EXAMPLES", "SUMMARY", "add_options", "execute"]

SUMMARY = "Talk with a model, turn by turn; accepted drafts are green on a terminal"
EXAMPLES = """examples:
  mtpcore chat model.gguf
  mtpcore chat model.gguf --system "Answer in one sentence." --temp 0.7
  printf 'Why is the sky blue?\\nAnd at dusk?\\n' | mtpcore chat model.gguf
"""
_INTERRUPTED = 130
_HELP = '''/clear           begin a new conversation; the system prompt stays (also /reset)
/regen           answer the last question again, with other noise
/undo            take back the last question and its answer
/system [TEXT]   show the system prompt, or give another one
/set [NAME X]    show the settings, or change one: temp, top-k, top-p, min-p, repeat-penalty,
                 frequency-penalty, presence-penalty, seed, n
/save FILE       write the conversation as JSON
/load FILE       go on with a conversation that was written
/stats           show what was written, drafted and reused so far
/exit            end, as Ctrl-D and Ctrl-C twice do (also /bye, /quit)
/help            show this (also /?)
//TEXT           send a text that begins with /
""" begins and ends a turn of several lines, a backslash at the end of a line goes on in the next,
and a pasted text is one turn. Ctrl-C stops an answer; what was written of it stays.'''
_NAMES = {**FIELDS, "seed": "seed"}
Messages = list[dict[str, str]]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    shared.add_model_options(parser)
    text = parser.add_argument_group("text")
    shared.add_system_option(text)
    text.add_argument(
        "-n",
        "--predict",
        "--n-predict",
        type=shared.whole(-1),
        default=-1,
        metavar="N",
        help="most tokens of an answer; -1 (the default): until it ends or the context is full",
    )
    shared.add_text_rules(text)
    shared.add_special_option(text)
    shared.add_room_options(text)
    add_template_options(parser)
    add_response_options(parser.add_argument_group("response template"))
    shared.add_draft_options(parser).add_argument(
        "--lookup-others",
        type=shared.whole(0),
        default=0,
        metavar="N",
        help="draft what followed in earlier conversations of this chat and in answers that were "
        "taken back, too: in their last N tokens; lookup then drafts first, unless --drafter says "
        "where (default: %(default)s)",
    )
    add_sampling_options(parser)
    shared.add_form_options(parser)
    add_adapter_options(parser)
    shared.add_context_options(parser)
    output = parser.add_argument_group("output")
    shared.add_colour_option(output)
    output.add_argument(
        "--no-history",
        dest="history",
        action="store_false",
        help="do not keep what is entered for later chats, nor show what earlier ones kept",
    )


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    given = given_sampling(options)
    with open_model(options) as model:
        take_template(options, model)
        take_response_template(options, model)
        if model.chat_template is None:
            raise MtpcoreError(
                "the model has no chat template",
                where=str(model.path),
                fix="mtpcore run continues a text with it; --chat-template-file gives it one",
            )
        sampling = sampling_of(given, model)
        n_ctx = shared.context_size(options, model) or default_n_ctx(model)
        session = open_session(options, model, n_ctx, others=options.lookup_others)
        generator = Generator(
            session.cross,
            sampling=sampling,
            draft=session.draft_or_auto,
            draft_sampler=options.draft_sampler,
            p_min=options.p_min,
            adapters=scales_of(options, session.llm),
            prefix_cache="all",
        )
        with LM.of(generator) as lm, _interrupts():
            return _ChatLoop(lm, session, options).run()


class _ChatLoop:
    """A conversation: what was said so far, and what a turn does."""

    def __init__(self, lm: LM, session: Session, options: argparse.Namespace) -> None:
        self._lm, self._session = lm, session
        self._turns = Turns(keeps=options.history)
        self._sampling = lm.generator.sampling
        self._n = options.predict
        self._when_full, self._n_keep = options.when_full, options.keep
        self._has_colour = uses_colour(options.color, sys.stdout)
        self._says_speed = self._turns.is_terminal or options.verbose
        self._system: str | None = options.system
        self._special: bool = options.special
        self._rules = shared.text_rules(options)
        self._variables = template_options(options, lm.model)
        self._messages: Messages = []
        """Without the system prompt."""
        self._commands: dict[str, Callable[[str], None]] = {
            **dict.fromkeys(("clear", "reset"), self._clear),
            **dict.fromkeys(("regen", "regenerate", "retry"), self._answer_again),
            **dict.fromkeys(("help", "?"), lambda _: _say(_HELP)),
            "undo": self._undo,
            "system": self._set_system,
            "set": self._set,
            "save": self._save,
            "load": self._load,
            "stats": lambda _: _say(self._describe()),
        }

    def run(self) -> int:
        """Take turns until the input ends; return the exit code."""
        if self._turns.is_terminal:
            note(f"{self._spell_settings()}; /help lists the commands")
        is_leaving = False
        while True:
            try:
                turn = self._turns.read()
                is_leaving = False
                if turn in ("/exit", "/bye", "/quit"):
                    return 0
                self._take(turn)
            except EOFError:
                if self._turns.is_terminal:
                    print()
                return 0
            except KeyboardInterrupt:
                if is_leaving:
                    return _INTERRUPTED
                is_leaving = True
                print(file=sys.stderr)
                note("Ctrl-C again, Ctrl-D or /exit ends the chat")

    def _take(self, turn: str) -> None:
        """Do what a turn says; a path, such as /etc/hosts, is no command."""
        command = re.match(r"/(\w+|\?)(?:[ \t]+(.*))?$", turn)
        if turn.startswith("//"):
            self._answer(turn[1:])
        elif command is None:
            if turn:
                self._answer(turn)
        elif command[1] in self._commands:
            try:
                self._commands[command[1]]((command[2] or "").strip())
            except (MtpcoreError, OSError) as error:
                note(str(error))
        else:
            _say(f"no such command: /{command[1]}; /help lists them, and /{turn} sends it as text")

    def _clear(self, _: str) -> None:
        self._messages = []

    def _undo(self, _: str) -> None:
        if not self._messages:
            _say("there is nothing to take back")
        while self._messages and self._messages.pop()["role"] != "user":
            pass

    def _answer_again(self, _: str) -> None:
        last = next((one for one in reversed(self._messages) if one["role"] == "user"), None)
        if last is None:
            _say("there is no question yet")
            return
        if not self._sampling.temperature:
            note("at temperature 0 the answer is the same; /set temp 0.8 changes that")
        stream = self._sampling.stream + 1
        self._sampling = msgspec.structs.replace(self._sampling, stream=stream)
        before = list(self._messages)
        self._undo("")
        if not self._answer(last["content"]):
            self._messages = before

    def _set_system(self, text: str) -> None:
        if text:
            self._system = text
        _say(self._system or "there is no system prompt")

    def _set(self, words: str) -> None:
        name, _, value = words.replace("=", " ").partition(" ")
        name, value = name.lstrip("-").replace("_", "-"), value.strip()
        try:
            if name in ("n", "predict", "n-predict"):
                self._n = shared.whole(-1)(value)
            elif name in _NAMES:
                field = _NAMES[name]
                kind = type(getattr(self._sampling, field))
                settings: dict[str, Any] = {field: kind(value)}
                self._sampling = msgspec.structs.replace(self._sampling, **settings)
            elif name:
                _say(f"no such setting: {name}; there are {', '.join(_NAMES)}, n")
        except SamplingError as error:
            note(str(error))
        except (ValueError, argparse.ArgumentTypeError):
            _say(f"{name}: wanted a number, got {value!r}")
        _say(f"{self._spell_settings()}, seed {self._sampling.seed}, n {self._n}")

    def _save(self, name: str) -> None:
        if not name:
            _say("give a file: /save chat.json")
            return
        with replacing(Path(name).expanduser()) as part:
            part.write_text(json.dumps(self._conversation(), indent=1), "utf-8")
        note(f"{len(self._messages)} messages written to {name}")

    def _load(self, name: str) -> None:
        if not name:
            _say("give a file: /load chat.json")
            return
        try:
            messages = msgspec.json.decode(Path(name).expanduser().read_bytes(), type=Messages)
            roles = [message["role"] for message in messages]
            if not all(isinstance(message["content"], str) for message in messages):
                raise ValueError("no content")
        except (ValueError, KeyError, msgspec.MsgspecError) as error:
            raise MtpcoreError(
                "no conversation",
                where=name,
                wanted='JSON, as /save writes it: a list of {"role": ..., "content": ...}',
                got=str(error),
            ) from None
        self._system = messages.pop(0)["content"] if roles[:1] == ["system"] else None
        self._messages = messages
        note(f"{len(messages)} messages read from {name}")

    def _encode(self) -> list[int]:
        return self._lm.encode_chat(self._conversation(), template_options=self._variables)

    def _conversation(self) -> Messages:
        begin = [] if self._system is None else [{"role": "system", "content": self._system}]
        return [*begin, *self._messages]

    def _answer(self, question: str) -> bool:
        """Write the answer to a question, and note both; return whether there is any."""
        before = self._messages
        self._messages = [*before, {"role": "user", "content": question}]
        written: list[Piece] = []
        prompt: list[int] = []
        try:
            if self._when_full == "shift":
                self._leave_out_turns()
            prompt = self._encode()
            if len(prompt) > self._lm.n_ctx:
                self._refuse_length(len(prompt))
            else:
                self._write(prompt, written)
        except MtpcoreError as error:
            note(str(error))
        except KeyboardInterrupt:
            note("stopped")
        answer = self._parse(prompt, written) if written else {}
        has_said = any(answer.get(part) for part in ("content", "reasoning_content"))
        self._messages = [*self._messages, answer] if has_said else before
        return has_said

    def _parse(self, prompt: list[int], written: list[Piece]) -> dict[str, str]:
        """Return an answer as a message: templates leave reasoning out of earlier turns."""
        text = self._say_again(written) if self._special else "".join(written)
        tokens = [token for piece in written for token in piece.tokens]
        answer = AnswerParsing.of(self._lm.model, prompt).read_tokens(tokens, text, None)
        thought = {"reasoning_content": answer.reasoning} if answer.reasoning else {}
        return {"role": "assistant", "content": answer.content, **thought}

    def _write(self, prompt: list[int], written: list[Piece]) -> None:
        """Write an answer piece by piece, and add what was written."""
        with self._lm.stream(
            prompt,
            max_tokens=None if self._n < 0 else self._n,
            **self._rules,
            special=self._special,
            when_full=self._when_full,
            n_keep=self._n_keep,
            sampling=answering(self._lm.model, prompt, self._sampling),
        ) as stream:
            with show_reading(self._lm.generator.cross.llm, stream.request):
                first = list(islice(stream, 1))  # comes when the prompt was read
            try:
                for piece in chain(first, stream):
                    written.append(piece)
                    self._show(piece)
            finally:
                if written and not "".join(written).endswith("\n"):
                    print(flush=True)
            self._say_how_it_ended(stream.completion)

    def _say_again(self, written: list[Piece]) -> str:
        """Return an answer without control tokens: they are shown, but no part of what was said."""
        stream = self._lm.tokenizer.stream()
        said = [stream.push(token) for piece in written for token in piece.tokens]
        return "".join(said) + stream.flush()

    def _refuse_length(self, n_tokens: int) -> None:
        back = "; the up arrow brings the question back" if self._turns.is_terminal else ""
        note(
            f"the conversation would take {n_tokens:,} tokens, and the context has "
            f"{self._lm.n_ctx:,}: it is longer than the context\n  fix: -c {n_tokens + 512} makes "
            f"room, /clear begins a new conversation, --when-full shift drops old turns{back}"
        )

    def _leave_out_turns(self) -> None:
        """Leave out the oldest turns of a conversation that takes three quarters of the context.

        The others take half of it at most, so this is rare: they are processed anew, as they begin
        with another turn than before.
        """
        n_ctx, n_turns = self._lm.n_ctx, 0
        if len(self._encode()) <= n_ctx * 3 // 4:
            return
        while len(self._messages) > 2 and len(self._encode()) > n_ctx // 2:
            self._messages, n_turns = self._messages[2:], n_turns + 1
        if n_turns:
            note(f"{n_turns} of the oldest turns left out, to make room in {n_ctx} tokens")

    def _show(self, piece: Piece) -> None:
        text = harmless(piece) if sys.stdout.isatty() else str(piece)
        sys.stdout.write(paint(text, "green") if piece.drafted and self._has_colour else text)
        sys.stdout.flush()

    def _say_how_it_ended(self, done: Completion) -> None:
        """Say what cut an answer, and at a terminal how fast it came."""
        stats = done.stats
        lines = []
        if done.finish_reason == "length" and stats.tokens != self._n:
            lines.append(
                f"the context of {self._lm.n_ctx} tokens is full: /clear begins a new "
                "conversation, -c N makes room for more, --when-full shift drops old turns"
            )
        if done.finish_reason == "no_token":
            lines.append("the answer ended: no token was left to choose")
        if self._says_speed and stats.seconds:
            rate = f"; {stats.accepted} of {stats.drafted} drafts accepted" if stats.drafted else ""
            cut = f", cut by -n {self._n}" if stats.tokens == self._n else ""
            speed = stats.tokens / stats.seconds
            lines.append(f"{stats.tokens} tokens at {speed:,.1f} tokens/s{cut}{rate}")
        for line in lines:
            note(paint(line, "dim") if self._has_colour else line)

    def _spell_settings(self) -> str:
        return spell_settings(self._sampling)

    def _describe(self) -> str:
        stats = self._lm.stats
        drafter = name_drafter(describe_settings(self._session, self._lm.generator))
        reused = f"{stats.cached_tokens} of {stats.prompt_tokens} prompt tokens were reused"
        return f"{describe(stats, drafter)}\n{reused}; --seed {self._sampling.seed}"


def _say(text: str) -> None:
    """Answer a command, on standard error: standard output has the model's answers alone."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _interrupts() -> Iterator[None]:
    """Let each Ctrl-C be an exception while the block runs, not only the first one."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
