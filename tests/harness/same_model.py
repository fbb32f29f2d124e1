"""Whether two files are the same model: logits and drafts are equal to the last bit."""

import contextlib

import numpy as np

from mtpcore import Batch, Context, Sampling, link, load_model

PROMPT = np.arange(1, 9)


def outputs(paths):
    """Return logits of a prompt, and what is drafted after it where something drafts."""
    *beside, path = [path for path in reversed(paths) if not path.name.startswith("mmproj-")]
    with contextlib.ExitStack() as stack:
        model, *heads = [stack.enter_context(load_model(one)) for one in (path, *beside)]
        cross = link(Context(model, 64, kv_dtype="f32", threads=1), draft_model=(*heads, None)[0])
        if "encoder" in cross.contexts:
            cross.encode({0: PROMPT})
        logits = cross.llm.process(Batch.of(PROMPT, outputs="all")).logits.copy()
        drafts = cross.draft(0, 3, Sampling.greedy()) if cross.drafters else []
    return logits, np.array(drafts)


def assert_same(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        assert np.array_equal(one, other)
