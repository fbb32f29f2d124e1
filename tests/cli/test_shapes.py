"""Passes of other shapes: what is timed, and what it comes to."""

from harness.fixtures import model_file

import mtpcore
from mtpcore.cli import shapes
from mtpcore.cli.measure import Sample


def test_the_passes_that_are_timed(monkeypatch):
    timed, model = [], mtpcore.load_model("demo")

    def time(context, batch):
        depths = [context.length(int(seq)) for seq in {*batch.seq.tolist()}]
        assert len(context.process(batch).logits)
        timed.append((len(batch), len({*batch.seq.tolist()}), {*depths}))
        return 2.0

    monkeypatch.setattr(shapes, "_time", time)
    made = []

    def make(n_ctx, n_seq_max):
        made.append((n_ctx, n_seq_max))
        return mtpcore.Context(model, n_ctx, n_seq_max=n_seq_max, n_batch=16)

    done = []
    found = shapes.measure_shapes(
        make, [1, 2, 3], prompts=[5, 20], depths=[7, 40], sequences=[1, 4], n=2,
        after_each=lambda: done.append(1),
    )  # fmt: skip
    assert made == [(41, 4)]
    assert timed == [
        *[(5, 1, {0}), (20, 1, {0})] * 3,
        *[(1, 1, {7}), (1, 1, {40})] * 3,
        *[(1, 1, {32}), (4, 4, {32})] * 3,
    ]
    assert len(done) == len(timed)
    assert {name: speed.median for name, speed in found.speeds.items()} == {
        "pp5": 2.5, "pp20": 10, "tg @ d7": 0.5, "tg @ d40": 0.5, "tg x 1": 0.5, "tg x 4": 2,
    }  # fmt: skip


def test_the_longest_time_is_the_least_speed():
    found = shapes.Shapes({8: Sample(2.0, 1.0, 4.0)}).speeds["pp8"]
    assert found == Sample(4.0, 2.0, 8.0)


def test_a_hybrid_is_measured_at_several_depths():
    with mtpcore.load_model(model_file("qwen35-16")) as model:
        found = shapes.measure_shapes(
            lambda n_ctx, n_seq_max: mtpcore.Context(model, n_ctx, n_seq_max=n_seq_max),
            [1, 2, 3], prompts=[9], depths=[33, 8], sequences=[2], n=1,
        )  # fmt: skip
    assert len(found.speeds) == 4
    assert all(one.low > 0 for one in found.speeds.values())
