"""The drafters that the suite runs: those of every model in the package, and a draft model."""

from pathlib import Path
from tempfile import TemporaryDirectory

import mtpcore
from harness import hybrid_family
from mtpcore.discovery.loading import find_demos
from mtpcore.testing import Subject


def subject_of(name):
    with mtpcore.load_model(name) as model:
        draft_model = model.open_draft_model()
        return Subject(name, name, draft_path=draft_model and str(draft_model.path))


FAMILIES = [
    subject_of(name)
    for name, _ in sorted(find_demos().items(), key=lambda found: found[1].name)
    if not name.endswith(("-draft", ":small"))
]
DRAFT_MODEL = Subject("demo:small", "demo", draft_path=str(find_demos()["demo:small"]))
_FOLDER = TemporaryDirectory(prefix="mtpcore-hybrid-")
HYBRID = hybrid_family.subject(Path(_FOLDER.name))
"""A toy with recurrent layers in trunk and head, written anew by each process."""
