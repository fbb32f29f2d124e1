"""Slots: the sequences of a server, and what they hold of texts, saved and restored."""

from __future__ import annotations

import re
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mtpcore.serving.answers import Service
from mtpcore.serving.bodies import read_body, read_fields
from mtpcore.serving.fields import HARMLESS
from mtpcore.serving.refusals import Refusal
from mtpcore.serving.replies import reply

__all__ = ["change_slot", "show_slots"]

_NAME = re.compile(r"[\w-][\w. -]{0,199}")
"""Names of files: no folders, and none that is hidden."""


async def show_slots(service: Service, request: Request) -> Response:
    """List the slots: how many tokens each holds, and which of them write."""
    kept = service.lm.generator.kept
    n_ctx, lengths, busy = service.lm.n_ctx, kept.lengths(), kept.busy()
    return reply(
        [
            {"id": i, "n_ctx": n_ctx, "n_tokens": lengths[i], "is_processing": i in busy}
            for i in range(service.n_at_once)
        ]
    )


class SlotFields(msgspec.Struct):
    """The file of a text: a name, without a folder."""

    filename: str


async def change_slot(service: Service, request: Request) -> Response:
    """Save, restore or erase what a slot holds, as llama.cpp's server does.

    What is saved is the state of every role: later texts go on from it with drafts as before.
    """
    slot, kept = _slot_of(service, request), service.lm.generator.kept
    action = request.query_params.get("action", "")
    if action == "erase":
        n_erased = await service.lm.run_between_rounds(lambda: kept.forget(slot))
        return reply({"id_slot": slot, "n_erased": n_erased})
    if action not in ("save", "restore"):
        raise Refusal(400, "an action is save, restore or erase", param="action")
    fields = read_fields(await read_body(request, service.settings.max_body), SlotFields, HARMLESS)
    path, begin = _path_of(service, fields.filename), perf_counter()
    facts: dict[str, Any] = {"id_slot": slot, "filename": fields.filename}
    if action == "save":
        facts["n_saved"] = await service.lm.run_between_rounds(lambda: kept.save(slot, path))
        size, time = "n_written", "save_ms"
    else:
        if not path.is_file():
            raise Refusal(404, f"no such file: {fields.filename!r}", param="filename")
        facts["n_restored"] = await service.lm.run_between_rounds(lambda: kept.load(slot, path))
        size, time = "n_read", "restore_ms"
    facts[size] = path.stat().st_size
    return reply(facts | {"timings": {time: 1e3 * (perf_counter() - begin)}})


def _slot_of(service: Service, request: Request) -> int:
    given = request.path_params["id"]
    if not given.isdecimal() or int(given) >= service.n_at_once:
        raise Refusal(
            400, f"no such slot: {given[:80]!r}; there are 0..{service.n_at_once - 1}", param="id"
        )
    return int(given)


def _path_of(service: Service, name: str) -> Path:
    folder = service.settings.slot_folder
    if folder is None:
        raise Refusal(
            501,
            "this server saves nothing; start it with --slot-save-path",
            kind="not_supported_error",
        )
    if not _NAME.fullmatch(name):
        raise Refusal(400, f"not the name of a file: {name[:80]!r}", param="filename")
    return folder / name
