"""The choice of tokens against the definition."""

import numpy as np
from harness.cuda_steps import execute
from harness.search import searching
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from mtpcore.backends.cuda.launch.tokens import choose

# One device serves all examples of a property.
shared = searching(15, suppress_health_check=[HealthCheck.function_scoped_fixture])


@shared
@given(
    row=st.lists(
        st.sampled_from([0.0, -0.0, 1.0, 2.0, np.nan, np.inf, -np.inf]), min_size=1, max_size=700
    )
)
def test_argmax_takes_the_lowest_of_the_best_and_never_a_nan(device, row):
    logits = np.array([row, [np.nan] * len(row), [-np.inf] * len(row)], np.float32)
    ids = device.upload(np.full(3, -1, np.int32))
    execute(device, [choose(device.upload(logits), ids, 3)])
    comparable = np.where(np.isnan(logits[0]), -np.inf, logits[0])
    usable = np.flatnonzero(~np.isnan(logits[0]))
    best = comparable[usable].max() if len(usable) else None
    wanted = next((int(i) for i in usable if comparable[i] == best), 0)
    assert device.download(ids, 3).tolist() == [wanted, 0, 0]
