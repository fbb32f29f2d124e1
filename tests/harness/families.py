"""The families of drafters that the suite runs: every model in the package."""

from pathlib import Path

import mtpcore
from mtpcore.discovery.loading import find_companion
from mtpcore.testing import Subject

DATA = Path(mtpcore.__file__).parent / "data"


def subject_of(name):
    return Subject(name, name, draft_path=find_companion(name))


FAMILIES = [
    subject_of(path.stem.replace("-", ":", 1))
    for path in sorted(DATA.glob("demo*.gguf"))
    if not path.stem.endswith("-draft")
]
