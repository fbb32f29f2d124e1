"""``--draft-sampler`` and ``--p-min`` reach the generator."""

import json

import pytest

import mtpcore
from mtpcore.decoding import Generator
from mtpcore.sampling import USUAL


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ((), {}),
        (("--draft-sampler", "argmax"), {"draft_sampler": "argmax"}),
        (("--p-min", 0.3), {"p_min": 0.3}),
        (("--draft-p-min", 0.3, "--draft-sampler", "argmax"),
         {"p_min": 0.3, "draft_sampler": "argmax"}),
        (("--spec-draft-p-min", 1), {"p_min": 1.0}),
    ],
)  # fmt: skip
def test_drafts_are_chosen_as_the_options_say(command, glm, options, settings):
    """The counts are those of a generator with these settings, and others without them."""
    sampling = mtpcore.Sampling(**USUAL | {"temperature": 1.0, "seed": 7})
    counts = []
    for one in (settings, {}):
        cross = mtpcore.link(mtpcore.Context(mtpcore.load_model(glm), 64))
        gen = Generator(cross, sampling=sampling, draft=3, **one)
        tokens = list(gen.generate([345, 297, 346], max_tokens=30, ignore_eos=True))
        counts.append((gen.stats.drafted, gen.stats.accepted_per_position))
    _, out, _ = command(
        "run", glm, "--prompt-tokens", "345,297,346", "-n", 30, "--json", "--draft", 3,
        "--temp", 1, "--seed", 7, "--ignore-eos", *options,
    )  # fmt: skip
    made = json.loads(out)
    assert made["tokens"] == tokens
    assert (made["stats"]["drafted"], made["stats"]["accepted_per_position"]) == counts[0]
    assert (counts[0] != counts[1]) == bool(settings)
    assert settings.get("p_min") != 1 or counts[0][0] == 0
