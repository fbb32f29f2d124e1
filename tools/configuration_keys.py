"""Write down the settings of transformers' configuration classes: ``tests/data/configurations``.

``python tools/configuration_keys.py`` walks the class of every published architecture that README's
table lists and transformers has, nested configurations included, and writes each setting with its
default; and what the class makes of a small model's ``config.json`` without one of its settings.
It needs the package transformers, without PyTorch; the tests need neither.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from mtpcore.declarations.spec import DrafterSpec, ModelSpec
from mtpcore.discovery.registry import load_registry

OUT = Path(__file__).parents[1] / "tests/data/configurations/transformers.json"

SPELLED_ANEW = ("Dots3NoteForCausalLM", "Dots3NoteForConditionalGeneration")
"""Classes left out, since they write other settings than published checkpoints have."""
PARTS = ("vision_config", "audio_config", "codec_config")
"""Objects of other parts of a model, which are left out: their settings are not walked."""
OF_CLASSIFIERS = ("id2label", "label2id")
_ALL_SHARED = {
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
    "num_kv_shared_layers": 0,
}
_HEADS_OF_MAMBA = {"mamba_n_heads": 64, "mamba_d_head": "auto"}
GIVEN: dict[str, dict[str, Any]] = {
    "bamba": _HEADS_OF_MAMBA,
    "granitemoehybrid": _HEADS_OF_MAMBA,
    "afmoe": {"mup_enabled": True},
    "kimi_linear": dict.fromkeys(
        ("num_attention_heads", "num_key_value_heads", "linear_num_heads"), 12
    ),
    "mamba2": {"hidden_size": 480, "num_heads": 15, "head_dim": 64},
    "gemma4_assistant": {"text_config": _ALL_SHARED},
    "gemma4_unified_assistant": {"text_config": _ALL_SHARED},
}
"""What a class does not take by default, or not of a small model."""

SMALL = {
    "hidden_size": 480,
    "num_attention_heads": 12,
    "num_key_value_heads": 6,
    "head_dim": 56,
    "num_hidden_layers": 6,
    "d_model": 480,
    "d_kv": 56,
    "num_heads": 12,
    "num_layers": 6,
    "num_decoder_layers": 5,
}
"""Sizes that are no class's defaults, so that those show which follow from others."""


def published() -> list[str]:
    """Return the names of all classes that can be converted."""
    known = load_registry("")
    specs: list[ModelSpec | DrafterSpec] = [*known.models, *known.drafters]
    tables = (t for spec in specs for t in (spec.checkpoint, *spec.layouts) if t)
    return sorted({name for table in tables for name in table.architectures})


def model_types() -> Mapping[str, str]:
    """Return the type of model by the name of its class, as the package's own table pairs them.

    Of several types that share a class it is the one that the class is named after. The table is
    read as text: without PyTorch it cannot be imported.
    """
    table = Path(transformers.__file__).parent / "models/auto/modeling_auto.py"
    pairs = re.findall(r'\(\s*"([\w-]+)",\s*"(\w+)"\s*,?\s*\)', table.read_text())
    return {name: kind for kind, name in pairs if name.startswith(_stem(kind))}


def _stem(kind: str) -> str:
    """Return with what the names of a type's classes begin; a space where there is no such type."""
    named = CONFIG_MAPPING_NAMES.get(kind, " ")
    return str(named).removesuffix("Config").removesuffix("Text")


def plain(value: Any) -> Any:
    """Return a default as JSON holds it."""
    return json.loads(json.dumps(value, default=repr))


def leaves(values: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    """Yield paths and defaults; an empty object is one."""
    for name, value in values.items():
        if name in OF_CLASSIFIERS:
            continue
        if name in PARTS:
            yield f"{at}{name}", {}
        elif isinstance(value, Mapping) and value and all(isinstance(key, str) for key in value):
            yield from leaves(value, f"{at}{name}.")
        else:
            yield f"{at}{name}", plain(value)


def read(kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings, by path, of what a class makes of a ``config.json``."""
    given = json.loads(json.dumps(settings))
    given.pop("model_type", None)
    made = transformers.AutoConfig.for_model(kind, **given).to_dict()
    return dict(sorted(leaves(made)))


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by path as they stand in a file."""
    made: dict[str, Any] = {}
    for path, value in settings.items():
        *around, name = path.split(".")
        inner = made
        for one in around:
            inner = inner.setdefault(one, {})
        inner[name] = value
    return made


def small(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a small model."""
    paths = read(kind, given)
    sizes = {path: SMALL[name] for path in paths if (name := path.split(".")[-1]) in SMALL}
    asked = {path: size for path, size in sizes.items() if "per_layer_config" not in path}
    return read(kind, nested(asked | dict(leaves(given))))


def as_before(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as files spelled them before transformers 5: rotations in several places."""
    spelled: dict[str, Any] = {}
    for path, value in settings.items():
        around, _, name = path.rpartition("rope_parameters.")
        own = "" if name in ("rope_theta", "partial_rotary_factor") else "rope_scaling."
        is_flat = around + name != path and "." not in name
        spelled[f"{around}{own}{name}" if is_flat else path] = value
    return {
        path: value
        for path, value in spelled.items()
        if not (path.endswith("rope_scaling.rope_type") and value == "default")
    }


def absent(kind: str, settings: Mapping[str, Any], paths: set[str]) -> dict[str, dict[str, Any]]:
    """Return what a class makes of settings without one of them, or without an object.

    By path left out, the settings that differ from those with it; empty where none does.
    """
    whole = read(kind, nested(settings))
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(paths):
        kept = {p: v for p, v in settings.items() if p != path and not p.startswith(f"{path}.")}
        try:
            made = read(kind, nested(kept))
        except Exception as error:  # a class that does without is what counts
            found[path] = {"refused": type(error).__name__}
            continue
        changed = {p: made.get(p) for p in {*made, *whole} if made.get(p) != whole.get(p)}
        found[path] = dict(sorted(changed.items()))
    return {path: changed for path, changed in found.items() if changed}


def around(paths: Iterable[str]) -> set[str]:
    """Return paths, and those of the objects around them."""
    parts = (path.split(".") for path in paths)
    return {".".join(part[:n]) for part in parts for n in range(1, len(part) + 1)}


def main() -> None:
    """Write the file."""
    types, found, lacking = model_types(), {}, {}
    for name in published():
        if name not in types or name in SPELLED_ANEW:
            continue
        kind = types[name]
        given = GIVEN.get(kind, {})
        found[name] = read(kind, given)
        now = small(kind, given)
        before = as_before(now)
        lacking[name] = [
            {"settings": now, "absent": absent(kind, now, around(now))},
            {"settings": before, "absent": absent(kind, before, around(before.keys() - now))},
        ]
    OUT.parent.mkdir(exist_ok=True)
    made = {"made_with": {"transformers": transformers.__version__}, "classes": found}
    OUT.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")
    text = json.dumps(lacking, indent=0, sort_keys=True)
    OUT.with_name("absent.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
