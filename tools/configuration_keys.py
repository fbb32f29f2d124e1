"""Write down the settings of transformers' configuration classes: ``tests/data/configurations``.

``python tools/configuration_keys.py`` walks the class of every published architecture that README's
table lists and transformers has, nested configurations included, and writes each setting with its
default. It needs the package transformers, without PyTorch; the tests need neither.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from mtpcore.discovery.registry import load_registry

OUT = Path(__file__).parents[1] / "tests/data/configurations/transformers.json"

PARTS = ("vision_config", "audio_config", "codec_config")
"""Objects of other parts of a model, which are left out: their settings are not walked."""
_ALL_SHARED = {
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
    "num_kv_shared_layers": 0,
}
GIVEN = {
    "gemma4_assistant": {"text_config": _ALL_SHARED},
    "gemma4_unified_assistant": {"text_config": _ALL_SHARED},
}
"""What a class does not take by default."""


def published() -> list[str]:
    """Return the names of all classes that can be converted."""
    known = load_registry("")
    specs = (*known.models, *known.drafters)
    tables = (t for spec in specs for t in (spec.checkpoint, *getattr(spec, "layouts", ())) if t)
    return sorted({name for table in tables for name in table.architectures})


def model_types() -> Mapping[str, str]:
    """Return the type of model by the name of its class, as the package's own table pairs them.

    The table is read as text: without PyTorch it cannot be imported.
    """
    table = Path(transformers.__file__).parent / "models/auto/modeling_auto.py"
    pairs = re.findall(r'\(\s*"([\w-]+)",\s*"(\w+)"\s*,?\s*\)', table.read_text())
    return {name: kind for kind, name in pairs if kind in CONFIG_MAPPING_NAMES}


def plain(value: Any) -> Any:
    """Return a default as JSON holds it."""
    return json.loads(json.dumps(value, default=repr))


def leaves(values: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    """Yield paths and defaults; an empty object is one."""
    for name, value in values.items():
        if name in PARTS:
            yield f"{at}{name}", {}
        elif isinstance(value, Mapping) and value and all(isinstance(key, str) for key in value):
            yield from leaves(value, f"{at}{name}.")
        else:
            yield f"{at}{name}", plain(value)


def main() -> None:
    """Write the file."""
    types, found = model_types(), {}
    for name in published():
        if name not in types:
            continue
        made = transformers.AutoConfig.for_model(types[name], **GIVEN.get(types[name], {}))
        found[name] = dict(sorted(leaves(made.to_dict())))
    OUT.parent.mkdir(exist_ok=True)
    made_with = {"transformers": transformers.__version__}
    text = json.dumps({"made_with": made_with, "classes": found}, indent=1, sort_keys=True)
    OUT.write_text(text + "\n")


if __name__ == "__main__":
    main()
