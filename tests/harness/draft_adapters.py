"""A plugin whose drafter is an adapter of its target, and subjects with random adapters."""

import types

from harness.adapters import matrices_of, write_adapter
from mtpcore import load_model
from mtpcore.discovery.registry import Registry, registry
from mtpcore.plugin import Block, DrafterSpec, Fit, Noise, draft_block_tree, hookimpl
from mtpcore.testing import Subject

SPEC = DrafterSpec(
    name="adapted",
    fit=Fit(),
    adapter=True,
    shape="block",
    block=Block(size=6, mask=Noise(first=1)),
    schedule=draft_block_tree,
)
PLUGIN = types.ModuleType("toy_adapters")
PLUGIN.__dict__["mtpcore_drafters"] = hookimpl(lambda: [SPEC])
KNOWN = Registry((*registry().plugins, *Registry.of(PLUGIN).plugins))


def write_for(path, model, **options):
    """Write an adapter of all of a model's products."""
    write_adapter(path, model.architecture, matrices_of(model), **{"seed": 1, **options})
    return path


def subject_of(folder, source):
    """Return a subject: a model with an adapter that drafts, written to a folder."""
    with load_model(source, mtp=False, sidecars=False) as model:
        adapter = write_for(folder / "draft.gguf", model)
    return Subject(str(source), source, drafter=SPEC.name, plugins=KNOWN, mtp_path=adapter)
