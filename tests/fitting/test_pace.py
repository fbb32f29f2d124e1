"""How many tokens a fit reads in the time that it has."""

import pytest

from mtpcore.fitting.pace import Pace
from mtpcore.fitting.settings import Settings


def test_time_goes_into_reading_writing_and_each_epoch():
    pace = Pace(reading=1e-3, writing=4e-3, training=2e-3)
    settings = Settings(written=0.25, epochs=3, window=512)
    assert pace.tokens_within(10, settings) == pytest.approx(0.9 * 600 / 8e-3, abs=1)
    assert pace.tokens_within(1e-6, settings) == settings.window
