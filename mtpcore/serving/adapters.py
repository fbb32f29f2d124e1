"""Adapters of the model: named as models of their own, or by number as llama.cpp's server does."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mtpcore.lm import LM
from mtpcore.serving.answers import Service
from mtpcore.serving.bodies import read_list
from mtpcore.serving.refusals import Refusal
from mtpcore.serving.replies import reply

__all__ = ["LATEST", "AdapterField", "change_adapters", "choose_adapters", "show_adapters"]


LATEST = ":latest"
"""What Ollama's clients add to a name that has no tag."""


class AdapterField(msgspec.Struct):
    """An adapter by its number in the order of ``/lora-adapters``, and its scale."""

    id: int
    scale: float


def choose_adapters(
    lm: LM, model: str | None, given: Sequence[AdapterField] | None
) -> dict[str, float] | None:
    """Return the adapters that a request asks for; None: it leaves that to the server.

    Parameters
    ----------
    lm : LM
    model : str, optional
        The name of an adapter means this one alone.
    given : sequence of AdapterField, optional
        Those that it does not name have scale 0.

    Raises
    ------
    Refusal
        There is no adapter of a number.
    """
    names = [*lm.adapters]
    if given is not None:
        for one in given:
            if not 0 <= one.id < len(names):
                raise Refusal(
                    400, f"no such adapter: {one.id}; there are {len(names)}", param="lora"
                )
        return {names[one.id]: one.scale for one in given}
    model = None if model is None else model.removesuffix(LATEST)
    return {model: 1.0} if model is not None and model in names else None


async def show_adapters(service: Service, request: Request) -> Response:
    """List the adapters, with the scales of requests that name none."""
    lm = service.lm
    return reply(
        [
            {"id": i, "name": name, "path": str(lm.adapters[name].path), "scale": scale}
            for i, (name, scale) in enumerate(_scales(lm).items())
        ]
    )


def _scales(lm: LM) -> dict[str, float]:
    return {name: lm.default_adapters.get(name, 0.0) for name in lm.adapters}


async def change_adapters(service: Service, request: Request) -> Response:
    """Set the scales of requests from now on that name none; those that are left out become 0."""
    given = await read_list(request, service.settings.max_body, AdapterField)
    service.lm.default_adapters = choose_adapters(service.lm, None, given) or {}
    return reply({"success": True})
