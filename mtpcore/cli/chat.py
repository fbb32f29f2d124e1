"""``mtpcore chat``: a conversation at the terminal."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain, islice

from mtpcore.cli import options as shared
from mtpcore.cli.report import describe, describe_settings, name_drafter
from mtpcore.cli.session import Session, open_model, open_session, show_reading
from mtpcore.cli.terminal import harmless, note, paint, uses_colour
from mtpcore.decoding import Generator
from mtpcore.errors import MtpcoreError
from mtpcore.lm import LM, Piece, default_n_ctx

__all__ = ["EXAMPLES", "SUMMARY", "add_options", "execute"]

SUMMARY = "Talk with a model, turn by turn; accepted drafts are green on a terminal"
EXAMPLES = """examples:
  mtpcore chat model.gguf
  mtpcore chat model.gguf --system "Answer in one sentence." --temp 0.7
  printf 'Why is the sky blue?\\nAnd at dusk?\\n' | mtpcore chat model.gguf
"""
_INTERRUPTED = 130
_COMMANDS = """/reset  begin a new conversation
/stats  show what was written, drafted and reused so far
/exit   end, as Ctrl-D and Ctrl-C twice do
/help   show this
Ctrl-C stops an answer; what was written of it stays in the conversation."""


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
    shared.add_room_options(text)
    shared.add_draft_options(parser)
    shared.add_sampling_options(parser)
    shared.add_context_options(parser)
    output = parser.add_argument_group("output")
    output.add_argument(
        "--color", choices=("auto", "always", "never"), default="auto", help="default: auto"
    )


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    given = shared.given_sampling(options)
    with open_model(options) as model:
        if model.chat_template is None:
            raise MtpcoreError(
                "the model has no chat template",
                where=str(model.path),
                fix="mtpcore run continues a text with it",
            )
        session = open_session(options, model, options.ctx_size or default_n_ctx(model))
        generator = Generator(
            session.cross,
            sampling=shared.sampling_of(given, model),
            draft=session.draft_or_auto,
            draft_sampler=options.draft_sampler,
            p_min=options.p_min,
            prefix_cache="all",
        )
        with LM.of(generator) as lm, _interrupts():
            return _Chat(lm, session, options).run()


class _Chat:
    """A conversation: what was said so far, and what a line of input does."""

    def __init__(self, lm: LM, session: Session, options: argparse.Namespace) -> None:
        self._lm, self._session = lm, session
        self._max_tokens = None if options.predict < 0 else options.predict
        self._when_full, self._n_keep = options.when_full, options.keep
        self._system = options.system
        self._has_colour = uses_colour(options.color, sys.stdout)
        self._is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        self._messages = self._begin()
        if self._is_terminal:
            with suppress(ImportError):
                import readline  # noqa: F401  # lines can be edited, and old ones come back

    def run(self) -> int:
        """Take lines until the input ends; return the exit code."""
        if self._is_terminal:
            note("/help lists the commands")
        is_leaving = False
        while True:
            try:
                line = self._read()
                is_leaving = False
                if line == "/exit":
                    return 0
                self._take(line)
            except EOFError:
                if self._is_terminal:
                    print()
                return 0
            except KeyboardInterrupt:
                if is_leaving:
                    return _INTERRUPTED
                is_leaving = True
                print(file=sys.stderr)
                note("Ctrl-C again, Ctrl-D or /exit ends the chat")

    def _read(self) -> str:
        """Return the next line; raise EOFError where the input ends."""
        try:
            return input("> " if self._is_terminal else "").strip()
        except (OSError, UnicodeDecodeError) as error:
            got = getattr(error, "strerror", None) or error
            raise MtpcoreError("cannot read a turn", where="standard input", got=got) from None

    def _begin(self) -> list[dict[str, str]]:
        return [] if self._system is None else [{"role": "system", "content": self._system}]

    def _take(self, line: str) -> None:
        """Do what a line says."""
        if line == "/reset":
            self._messages = self._begin()
        elif line == "/stats":
            _say(self._describe())
        elif line == "/help":
            _say(_COMMANDS)
        elif line.startswith("/"):
            _say(f"no such command: {line}\n{_COMMANDS}")
        elif line:
            self._answer(line)

    def _answer(self, question: str) -> None:
        """Write the answer to a question, and note both; a question that fails is forgotten."""
        messages = [*self._messages, {"role": "user", "content": question}]
        written: list[Piece] = []
        try:
            if self._when_full == "shift":
                messages = self._leave_out_turns(messages)
            with self._lm.chat(
                messages,
                stream=True,
                max_tokens=self._max_tokens,
                when_full=self._when_full,
                n_keep=self._n_keep,
            ) as stream:
                with show_reading(self._lm.generator.cross.llm, stream.request):
                    first = list(islice(stream, 1))  # comes when the prompt was read
                for piece in chain(first, stream):
                    written.append(piece)
                    self._show(piece)
                if stream.completion.finish_reason == "length":
                    self._say_what_is_full(stream.completion.stats.tokens)
        except MtpcoreError as error:
            note(str(error))
        except KeyboardInterrupt:
            note("stopped")
        answer = "".join(written)
        if written and not answer.endswith("\n"):
            print(flush=True)
        if answer:
            self._messages = [*messages, {"role": "assistant", "content": answer}]

    def _leave_out_turns(self, messages: list[dict[str, str]]) -> list[dict[str, str]]:
        """Leave out the oldest turns of a conversation that takes three quarters of the context.

        The others take half of it at most, so this is rare: they are processed anew, as they begin
        with another turn than before.
        """
        n_ctx, begin = self._lm.n_ctx, len(self._begin())
        if len(self._lm.encode_chat(messages)) <= n_ctx * 3 // 4:
            return messages
        left, n_turns = messages, 0
        while len(left) - begin > 2 and len(self._lm.encode_chat(left)) > n_ctx // 2:
            left, n_turns = [*left[:begin], *left[begin + 2 :]], n_turns + 1
        if n_turns:
            note(f"{n_turns} of the oldest turns left out, to make room in {n_ctx} tokens")
        return left

    def _show(self, piece: Piece) -> None:
        text = harmless(piece) if sys.stdout.isatty() else str(piece)
        sys.stdout.write(paint(text, "green") if piece.drafted and self._has_colour else text)
        sys.stdout.flush()

    def _say_what_is_full(self, n_tokens: int) -> None:
        if n_tokens != self._max_tokens:
            print()
            note(
                f"the context of {self._lm.n_ctx} tokens is full: /reset begins a new "
                "conversation, -c N makes room for more, --when-full shift drops old turns"
            )

    def _describe(self) -> str:
        stats = self._lm.stats
        drafter = name_drafter(describe_settings(self._session, self._lm.generator))
        reused = f"{stats.cached_tokens} of {stats.prompt_tokens} prompt tokens were reused"
        return f"{describe(stats, drafter)}\n{reused}; --seed {self._lm.generator.sampling.seed}"


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
