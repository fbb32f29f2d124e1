"""The families of drafters that the suite runs: those in the package, and an example's."""

from mtpcore.testing import Subject

FAMILIES = [Subject("glm", "demo")]
