"""The families that have a demo model."""

from typing import NamedTuple

from torch import nn

from demo.deepseek import Deepseek
from demo.eagle3 import Eagle3
from demo.glm import Glm
from demo.mimo import Mimo
from demo.mimo2 import Mimo2
from demo.small import Small


class Family(NamedTuple):
    """A network, its files in the package (as many as its `files()`), and how long it trains.

    `target` is a file that is there before, which the network's `target` is read from.
    """

    network: type[nn.Module]
    files: tuple[str, ...]
    n_steps: tuple[int, ...]  # of each stage
    n_batch: int = 1024  # tokens in a step
    precision: str = "medium"  # of matrix products in training: bfloat16 where that is faster
    target: str = ""


FAMILIES = {
    "glm": Family(Glm, ("demo.gguf",), (1600,), 2048, "highest"),
    "deepseek": Family(Deepseek, ("demo-deepseek.gguf",), (1500,), precision="highest"),
    "mimo": Family(Mimo, ("demo-mimo.gguf",), (600,)),
    "mimo2": Family(Mimo2, ("demo-mimo2.gguf",), (600,)),
    "eagle3": Family(Eagle3, ("demo-eagle3.gguf", "demo-eagle3-draft.gguf"), (600, 250)),
    "small": Family(Small, ("demo-small.gguf",), (700,), 2048, "highest", "demo.gguf"),
}
