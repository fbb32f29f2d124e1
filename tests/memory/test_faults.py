"""Faults of recurrent memory, planted one at a time, that the properties must see."""

import msgspec
import numpy as np
import pytest
from harness.families import HYBRID
from harness.search import searching
from hypothesis import HealthCheck, Phase
from hypothesis.stateful import run_state_machine_as_test

from mtpcore.backends.reference import recurrent as operations
from mtpcore.backends.reference.states import ReferenceLayerStates
from mtpcore.errors import StateError
from mtpcore.memory import recurrent
from mtpcore.testing import Texts, check_graphs, check_texts
from mtpcore.testing.machine import machine_of

FEW = searching(
    8,
    stateful_step_count=20,
    phases=[Phase.generate],  # the first fault that is found is enough
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


def keep_one_more(held, length, cut=recurrent._cut):
    """Cut a log one row after the place that is wanted, where it has one."""
    kept = cut(held, length)
    newest = held[len(kept) - 1]
    return (*kept[:-1], newest._replace(rows=newest.rows[: len(kept[-1].rows) + 1]))


def replay_twice(self, slot, rows, state=ReferenceLayerStates.state):
    return state(self, slot, [*rows, *rows])


def walk_late(run, memory, states, logged, read, walk=operations._walk):
    """Let a convolution see the rows before its newest one a place late."""

    def late(row, before, after):
        if before.ndim == 2:
            before = np.concatenate([np.zeros_like(before[:1]), before[:-1]])
        read(row, before, after)

    walk(run, memory, states, logged, late)


@pytest.mark.hypothesis
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_sound_memory_passes(backend):
    run_state_machine_as_test(machine_of(HYBRID, backend=backend), settings=FEW)


@pytest.mark.hypothesis
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_row_too_many_is_found(backend, monkeypatch):
    """By the bits of the memory, or by a state that cannot be loaded where it was saved."""
    monkeypatch.setattr(recurrent, "_cut", keep_one_more)
    shown = r"hybrid, sequence|impossible states|lengths that differ"
    with pytest.raises((AssertionError, StateError), match=shown):
        run_state_machine_as_test(machine_of(HYBRID, backend=backend), settings=FEW)


@pytest.mark.hypothesis
def test_rows_that_are_replayed_twice_are_found(monkeypatch):
    monkeypatch.setattr(ReferenceLayerStates, "state", replay_twice)
    with pytest.raises(AssertionError, match="hybrid, sequence"):
        run_state_machine_as_test(machine_of(HYBRID, backend="reference"), settings=FEW)


def test_a_late_window_is_found_and_no_text_shows_it(monkeypatch):
    """It is the same for every batch, and so is every state: the definition alone differs."""
    monkeypatch.setattr(operations, "_walk", walk_late)
    check_texts(msgspec.structs.replace(HYBRID, backend="reference"), Texts(n_texts=1, n_tokens=8))
    with pytest.raises(AssertionError, match=r"hybrid, .* by definition"):
        check_graphs(HYBRID)
