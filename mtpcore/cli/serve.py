"""``mtpcore serve``: a server for clients of OpenAI's, Anthropic's and Ollama's APIs."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mtpcore.cli import options as shared
from mtpcore.cli.allocator import keep_flat
from mtpcore.cli.lora import add_adapter_options, scales_of
from mtpcore.cli.samplers import add_sampling_options, given_sampling
from mtpcore.cli.session import open_model, open_session
from mtpcore.cli.templates import (
    add_response_options,
    add_template_options,
    take_response_template,
    take_template,
    template_options,
)
from mtpcore.cli.terminal import note
from mtpcore.decoding import Generator
from mtpcore.errors import MtpcoreError
from mtpcore.lm import LM, default_n_ctx, recommend_sampling
from mtpcore.lm.settings import SamplingOptions

if TYPE_CHECKING:
    from mtpcore.serving import ServerSettings

__all__ = ["EXAMPLES", "SUMMARY", "add_options", "execute"]

SUMMARY = "Serve a model over HTTP, as OpenAI's, Anthropic's and Ollama's APIs have it"
EXAMPLES = """examples:
  mtpcore serve model.gguf
  mtpcore serve model.gguf --port 9000 --parallel 8 --api-key SECRET
  curl localhost:8080/v1/chat/completions -d '{"messages": [{"role": "user", "content": "hello"}]}'
"""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_GRACE = 30
"""Seconds in which answers may end after a stop was asked for."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    shared.add_model_options(parser)
    group = parser.add_argument_group("server")
    group.add_argument(
        "--host", default="127.0.0.1", help="address to listen at (default: %(default)s)"
    )
    group.add_argument(
        "--port",
        type=shared.whole(0, 1 << 16),
        default=8080,
        metavar="N",
        help="0: any that is free (default: %(default)s)",
    )
    group.add_argument("-a", "--alias", metavar="NAME", help="what the model is called")
    group.add_argument(
        "-np",
        "--parallel",
        type=shared.whole(1),
        default=4,
        metavar="N",
        help="texts that are written at once, each in a context of its own (default: %(default)s)",
    )
    group.add_argument(
        "--max-waiting",
        type=shared.whole(0),
        default=64,
        metavar="N",
        help="texts that may wait; whoever asks for more is told to come again (default: "
        "%(default)s)",
    )
    group.add_argument(
        "--max-choices",
        type=shared.whole(1),
        default=16,
        metavar="N",
        help="texts of one request, its prompts times its n (default: %(default)s)",
    )
    group.add_argument(
        "--max-body",
        type=shared.whole(1),
        default=32,
        metavar="MIB",
        help="most mebibytes of a request (default: %(default)s)",
    )
    group.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help="ask for this key (repeatable)",
    )
    group.add_argument(
        "--origin",
        action="append",
        default=[],
        metavar="URL",
        help="a web page that may ask from a browser; *: all (repeatable)",
    )
    group.add_argument(
        "--no-page",
        dest="page",
        action="store_false",
        help="serve no page for browsers, which is at / otherwise",
    )
    group.add_argument(
        "--pooling",
        choices=("mean", "last", "none"),
        help="how embeddings are made where a request does not say (default: as the file says)",
    )
    group.add_argument(
        "--slot-save-path",
        type=Path,
        metavar="FOLDER",
        help="where requests may save and restore what slots hold (default: nowhere)",
    )
    group.add_argument(
        "--time-limit", type=shared.whole(1), metavar="S", help="most seconds of a request"
    )
    shared.add_draft_options(parser).add_argument(
        "--lookup-others",
        type=shared.whole(0),
        default=0,
        metavar="N",
        help="draft what followed in other texts of this server, too: in their last N tokens",
    )
    add_template_options(parser)
    add_response_options(parser.add_argument_group("response template"))
    add_sampling_options(parser)
    add_adapter_options(parser)
    shared.add_context_options(parser)


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    for package in ("starlette", "uvicorn", "prometheus_client"):
        if find_spec(package) is None:
            raise MtpcoreError(
                "the server is not installed",
                got=f"no {package}",
                fix="pip install 'mtpcore[serve]'",
            )
    folder = options.slot_save_path
    if folder is not None and not folder.is_dir():
        options.parser.error(f"--slot-save-path: no such folder: {folder}")
    given = given_sampling(options)
    if given.pop("stream", 0):
        options.parser.error("a stream of noise is for one text: give each request a seed")
    keep_flat()
    with open_model(options) as model:
        take_template(options, model)
        take_response_template(options, model)
        variables = template_options(options, model)
        sampling = cast(SamplingOptions, recommend_sampling(model).defaults | given)
        n_ctx = shared.context_size(options, model) or default_n_ctx(model)
        session = open_session(
            options, model, n_ctx, others=options.lookup_others, n_seq_max=options.parallel
        )
        generator = Generator(
            session.cross,
            draft=session.draft_or_auto,
            draft_sampler=options.draft_sampler,
            p_min=options.p_min,
            adapters=scales_of(options, session.llm),
            prefix_cache="all",
        )
        with LM.of(generator, sampling) as lm:
            note(f"{model.path.name}: {options.parallel} texts at once, {n_ctx} tokens each")
            note(f"drafts: {', '.join(session.names) or 'none'}")
            _serve(lm, options, variables)
    return 0


def _serve(lm: LM, options: argparse.Namespace, variables: Mapping[str, Any]) -> None:
    """Serve until a signal ends it."""
    import uvicorn

    from mtpcore.serving import build_app

    app = build_app(lm, _settings(options, variables))
    config = uvicorn.Config(
        app,
        log_level="info" if options.verbose else "warning",
        timeout_graceful_shutdown=_GRACE,
        access_log=bool(options.verbose),
        ws="none",
    )
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    with socket.create_server((options.host, options.port), family=family) as listener:
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        note(f"listening at http://{shown}:{port}; Ctrl-C ends it")
        uvicorn.Server(config).run(sockets=[listener])


def _settings(options: argparse.Namespace, variables: Mapping[str, Any]) -> ServerSettings:
    from mtpcore.serving import ServerSettings

    is_local = options.host in _LOOPBACK
    return ServerSettings(
        name=options.alias,
        api_keys=tuple(options.api_key),
        origins=tuple(options.origin),
        hosts=_LOOPBACK if is_local else (),
        max_waiting=options.max_waiting,
        max_choices=options.max_choices,
        max_body=options.max_body << 20,
        seconds=options.time_limit,
        page=options.page,
        pooling=options.pooling,
        slot_folder=options.slot_save_path,
        template_options=variables,
    )
