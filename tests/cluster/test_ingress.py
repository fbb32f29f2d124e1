"""The ingress of a cluster, before replicas that die, are late, or are full."""

import asyncio
import json

import pytest
from harness.extras import require
from harness.search import searching
from hypothesis import given
from hypothesis import strategies as st

require("ray", extra="ray")
pytestmark = pytest.mark.filterwarnings("default")  # Ray's own are not ours to mend

EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8")]
LINES = [(b"content-type", b"application/x-ndjson")]
WHOLE = [(b"content-type", b"application/json"), (b"content-length", b"2")]


def start(headers):
    return {"type": "http.response.start", "status": 200, "headers": headers}


def body(raw, more=True):
    return {"type": "http.response.body", "body": raw, "more_body": more}


class Replicas:
    """A deployment's handle, whose answers are given: lists of messages, and errors."""

    def __init__(self, *answers):
        self.answers, self.asked, self.n_cancelled = list(answers), [], 0

    def options(self, **_):
        return self

    def remote(self, request):
        self.asked.append(request)
        return Answer(self, self.answers.pop(0))


class Answer:
    def __init__(self, replicas, steps):
        self._replicas, self._steps = replicas, iter(steps)

    def __aiter__(self):
        return self

    async def __anext__(self):
        step = next(self._steps, None)
        if step is None:
            raise StopAsyncIteration
        if isinstance(step, BaseException):
            raise step
        if step == "late":
            await asyncio.sleep(60)
        return step

    def cancel(self):
        self._replicas.n_cancelled += 1


def died():
    from ray.exceptions import ActorDiedError

    return ActorDiedError()


def ask(replicas, path="/v1/chat/completions", patience=5, gone=False):
    """Ask the ingress; return the status, the headers, and the body as it was sent."""
    from mtpcore.cluster.ingress import Ingress

    sent = []
    scope = {
        **{"type": "http", "method": "POST", "path": path, "raw_path": path.encode()},
        **{"query_string": b"", "headers": [], "root_path": "", "scheme": "http"},
        **{"http_version": "1.1", "client": None, "server": None},
    }
    bodies = [{"type": "http.request", "body": b'{"prompt": "x"}', "more_body": False}]

    async def receive():
        if bodies:
            return bodies.pop()
        if not gone:
            await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    async def run():
        app = Ingress(replicas, {"max_body": 1000}, patience).__serve_build_asgi_app__()
        await app(scope, receive, send)

    asyncio.run(run())
    starts = [one for one in sent if one["type"] == "http.response.start"]
    raw = b"".join(one.get("body", b"") for one in sent)
    if not starts:
        return None, {}, raw
    assert len(starts) == 1
    assert not gone
    assert sent[-1].get("more_body", False) is False
    return starts[0]["status"], dict(starts[0]["headers"]), raw


def test_another_replica_is_asked_where_one_dies_before_it_has_said_anything():
    for begun in ([], [[start(EVENTS), body(b":\n\n")]], [[start(WHOLE)]]):
        replicas = Replicas(
            [[], *begun, died()],
            [[], [start(EVENTS)], [body(b":\n\n"), body(b"data: 1\n\n")], [body(b"", more=False)]],
        )
        status, _, raw = ask(replicas)
        assert (status, raw.replace(b":\n\n", b"")) == (200, b"data: 1\n\n")
        assert len(replicas.asked) == 2
        assert replicas.n_cancelled == 1


def test_a_request_before_which_replicas_die_is_no_further_one_s():
    replicas = Replicas([[], died()], [died()], [[], [start(WHOLE), body(b"{}", more=False)]])
    status, headers, raw = ask(replicas)
    assert (status, headers[b"retry-after"]) == (503, b"1")
    assert json.loads(raw)["error"]["code"] == "replica_ended"
    assert len(replicas.asked) == 2


@pytest.mark.parametrize(
    ("path", "headers", "begin"),
    [
        ("/v1/chat/completions", EVENTS, b'data: {"error":{"message":'),
        ("/v1/responses", EVENTS, b'event: error\ndata: {"type":"error","code":"replica_ended"'),
        ("/v1/messages", EVENTS, b'event: error\ndata: {"type":"error","error":{"type":'),
        ("/api/chat", LINES, b'{"error":"the replica'),
    ],
)
def test_a_stream_whose_replicas_die_ends_with_an_error_of_its_api(path, headers, begin):
    replicas = Replicas(
        [[], [start(headers), body(b"news\n\n")], died()],
        [[], [start(headers), body(b":\n\n")], died()],
    )
    status, _, raw = ask(replicas, path)
    assert status == 200
    assert raw.replace(b":\n\n", b"").startswith(b"news\n\n" + begin)
    assert len(replicas.asked) == 2


def streamed(events, cut=None):
    """Return the steps of a replica that streams events, each in a message; it may die."""
    kind = EVENTS if events[0].endswith(b"\n\n") else LINES
    steps = [[], [start(kind)], *([body(event)] for event in events[:cut])]
    return [*steps, died() if cut is not None else [body(b"", more=False)]]


@pytest.mark.parametrize("end", [b"\n\n", b"\n"])
def test_a_stream_whose_replica_dies_is_that_of_another_one_from_there_on(end):
    events = [b"data: %d" % i + end for i in range(9)]
    for cut in range(9):
        replicas = Replicas(streamed(events, cut), streamed(events))
        status, _, raw = ask(replicas)
        assert (status, raw) == (200, b"".join(events))
        first, second = replicas.asked
        assert first.draws == second.draws
        assert len(first.draws.key) == 16


def test_any_number_of_replicas_may_die_while_each_brings_a_stream_further():
    events = [b"data: %d\n\n" % i for i in range(5)]
    replicas = Replicas(*(streamed(events, cut) for cut in (1, 2, 3, 4)), streamed(events))
    assert ask(replicas)[2] == b"".join(events)
    replicas = Replicas(streamed(events, 2), streamed(events, 3), streamed(events, 3))
    assert b"replica_ended" in ask(replicas)[2]


def test_texts_of_one_stream_go_on_where_each_of_them_was():
    chunks = [
        [b'data: {"id":"x","choices":[{"index":%d,"text":"%d"}]}\n\n' % (i, j) for j in range(4)]
        for i in range(2)
    ]
    (a0, a1, a2, a3), (b0, b1, b2, b3) = chunks
    end = b"data: [DONE]\n\n"
    replicas = Replicas(
        streamed([a0, a1, b0, a2], 4), streamed([b0, b1, a0, b2, a1, b3, a2, a3, end])
    )
    assert ask(replicas)[2] == b"".join([a0, a1, b0, a2, b1, b2, b3, a3, end])


def test_keep_alive_comments_are_no_events_to_leave_out():
    events = [b"data: 0\n\n", b":\n\n", b"data: 1\n\n"]
    again = [b":\n\n", b"data: 0\n\n", b"data: 1\n\n", b"data: 2\n\n"]
    raw = ask(Replicas(streamed(events, 3), streamed(again)))[2]
    assert raw == b"".join([*events, b":\n\n", b"data: 2\n\n"])


def cut(raw, places):
    """Return bytes in messages that begin at these places."""
    places = sorted({0, *(place for place in places if place < len(raw))})
    return [raw[i:j] for i, j in zip(places, [*places[1:], len(raw)], strict=True)]


@searching(60)
@given(
    end=st.sampled_from([b"\n\n", b"\n"]),
    texts=st.lists(st.integers(0, 2), max_size=8),
    again=st.permutations(range(8)),
    places=st.lists(st.sets(st.integers(0, 300)), min_size=2, max_size=2),
    death=st.integers(0, 300),
)
def test_events_are_whole_however_messages_are_cut(end, texts, again, places, death):
    """Those of a replica that dies anywhere, and of the next one, whose texts interleave otherwise.

    A message may end within an event, and within an event's end.
    """
    own = {text: [] for text in texts}
    events = []
    for text in texts:
        event = b'data: {"choices":[{"index":%d,"text":"%d"}]}' % (text, len(own[text])) + end
        own[text].append(event)
        events.append(event)
    left = {text: iter(own[text]) for text in own}
    others = [next(left[texts[i]]) for i in again if i < len(texts)]
    kind, comment = (EVENTS, b":\n\n") if end == b"\n\n" else (LINES, b"")
    last = b"data: [DONE]" + end
    first, second = (comment + b"".join(one) + comment + last for one in (events, others))
    replicas = Replicas(
        [[], [start(kind)], *([body(one)] for one in cut(first[:death], places[0])), died()],
        [[], [start(kind), *map(body, cut(second, places[1])), body(b"", more=False)]],
    )
    status, _, raw = ask(replicas)
    *sent, rest = raw.split(end)
    said = [one + end for one in sent if one + end != comment]
    assert (status, rest, said.pop()) == (200, b"", last)
    assert {text: [e for e in said if b'"index":%d' % text in e] for text in own} == own
    assert len(said) == len(events)


def test_a_stream_that_ends_within_an_event_has_not_ended():
    replicas = Replicas(
        [[], [start(EVENTS)], [body(b"data: 0\n\ndata: 1")], [body(b"", more=False)]]
    )
    raw = ask(replicas)[2]
    assert raw.startswith(b'data: 0\n\ndata: {"error":')


@pytest.mark.parametrize("how", ["refuses", "ends early"])
def test_a_replica_that_cannot_repeat_what_the_client_has_ends_the_stream_with_an_error(how):
    events = [b"data: %d\n\n" % i for i in range(4)]
    late = [[], [start(WHOLE) | {"status": 429}, body(b'{"error": {}}', more=False)]]
    replicas = Replicas(streamed(events, 3), late if how == "refuses" else streamed(events[:2]))
    raw = ask(replicas)[2]
    assert raw.startswith(b"".join(events[:3]) + b'data: {"error":')
    assert b"replica_ended" in raw


def test_an_error_of_a_response_has_the_number_that_follows():
    from mtpcore.serving.streams import encode_event

    events = [encode_event({"type": "a.b", "sequence_number": i}, "a.b") for i in range(13)]
    first = [[], [start(EVENTS), body(events[0])], [body(b"".join(events[1:]))], died()]
    replicas = Replicas(first, [[], died()])
    last = ask(replicas, "/v1/responses")[2].strip().split(b"data: ")[-1]
    assert json.loads(last)["sequence_number"] == 13


def test_a_body_that_is_cut_off_has_no_end():
    from mtpcore.serving.refusals import Refusal

    with pytest.raises(Refusal):
        ask(Replicas([[], [start(WHOLE), body(b"{")], died()]))


def test_full_queues_and_late_replicas_say_when_to_come_again():
    from ray.serve.exceptions import BackPressureError

    full = Replicas([BackPressureError(num_queued_requests=9, max_queued_requests=9)])
    status, headers, raw = ask(full, "/v1/messages")
    assert (status, headers[b"retry-after"]) == (429, b"1")
    assert json.loads(raw)["error"]["type"] == "rate_limit_error"
    late = Replicas(["late"])
    status, headers, raw = ask(late, patience=0.05)
    assert (status, headers[b"retry-after"]) == (503, b"5")
    assert json.loads(raw)["error"]["code"] == "no_replica"
    assert late.n_cancelled == 1


def test_a_probe_waits_for_no_replica(monkeypatch):
    monkeypatch.setattr("mtpcore.cluster.ingress._PROBE_SECONDS", 0.05)
    assert ask(Replicas(["late"]), "/health", patience=600)[0] == 503


def test_a_client_that_goes_cancels_the_call():
    replicas = Replicas([[], "late"])
    assert ask(replicas, gone=True)[0] is None
    assert replicas.n_cancelled == 1
    assert replicas.asked[0].body == b'{"prompt": "x"}'
    assert len(replicas.asked[0].keys) == 1


def test_metrics_and_counts_of_replicas_are_joined():
    from mtpcore.cluster.joining import join_crosses, join_metrics, join_slots

    shown = b"# HELP a:b_total Texts\n# TYPE a:b_total counter\na:b_total 2.0\n"
    joined = join_metrics({"y": shown, "x": shown.replace(b"2.0", b"3.0")}).decode()
    assert joined.splitlines()[1:] == [
        "# TYPE a:b_total counter",
        'a:b_total{replica="x"} 3.0',
        'a:b_total{replica="y"} 2.0',
    ]
    assert join_slots({"x": [{"id": 0}], "y": [{"id": 0}]}) == [
        {"id": 0, "replica": "x"},
        {"id": 0, "replica": "y"},
    ]
    one = {"contexts": {"llm": {"tokens": 3, "n_ctx": 9, "file": "f"}}, "per": [1, 2]}
    other = {"contexts": {"llm": {"tokens": 4, "n_ctx": 9, "file": "f"}}, "per": [5]}
    assert join_crosses([one, other]) == {
        "contexts": {"llm": {"tokens": 7, "n_ctx": 9, "file": "f"}},
        "per": [6, 2],
    }


def test_settings_are_read_and_refused_by_name():
    from mtpcore import MtpcoreError
    from mtpcore.cluster import application

    for settings, match in (
        ({}, "model"),
        ({"model": "demo", "slot_folder": "x"}, "slot_folder"),
        ({"model": "demo", "replicas": "none"}, "replicas"),
        ({"model": "demo", "replicas": 0}, "replicas"),
        ({"model": "demo", "replicas": 3, "max_replicas": "2"}, "at most"),
        ({"model": "demo", "autoscaling": {"upscale_delay_s": 1}}, "max_replicas"),
    ):
        with pytest.raises(MtpcoreError, match=match):
            application(settings)
    application({"model": "demo", "max_replicas": "3", "api_keys": "secret", "page": "false"})
