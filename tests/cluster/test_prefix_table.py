"""Conversations go where they were, unless that is busy: held against a list of all that was."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from mtpcore.cluster.prefix_keys import prefix_keys
from mtpcore.cluster.prefix_table import PrefixTable

PATH = "/v1/chat/completions"


def keys_of(messages, **fields):
    said = [{"role": "user", "content": one} for one in messages]
    return prefix_keys(PATH, msgspec.json.encode({"messages": said, **fields}))


def common(a, b):
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


texts = st.sampled_from(["a", "b", "x" * 700, "x" * 700 + "y"])
conversations = st.lists(texts, min_size=1, max_size=4)
steps = st.lists(
    st.tuples(
        conversations, st.integers(0, 2), st.lists(st.integers(0, 5), min_size=3, max_size=3)
    ),
    max_size=25,
)


@given(steps)
def test_a_conversation_goes_where_most_of_it_is_held(steps):
    table, sent = PrefixTable(most_ahead=2), []
    for conversation, spare, loads in steps:
        loads = dict(enumerate(loads))
        keys = keys_of(conversation)
        free = {one for one in loads if loads[one] <= min(loads.values()) + 2}
        # What each free replica holds of it, by comparison with all that it was sent.
        held = {
            one: max((common(keys, other) for other, place in sent if place == one), default=0)
            for one in free
        }
        most = max(held.values())
        chosen = table.choose(keys, loads)
        if most == 0:
            assert chosen is None
        else:
            best = [one for one in held if held[one] == most]
            assert chosen in best
            assert loads[chosen] == min(loads[one] for one in best)
        table.add(keys, spare)  # wherever it was sent in the end
        sent.append((keys, spare))


@given(st.lists(st.tuples(conversations, st.booleans()), min_size=1, max_size=40))
def test_no_replica_gets_far_ahead_of_the_others(steps):
    """All that is sent stays there: loads only grow, by one for each request."""
    table, loads = PrefixTable(most_ahead=3), dict.fromkeys(range(3), 0)
    for conversation, _ in steps:
        keys = keys_of(conversation)
        chosen = table.choose(keys, loads)
        if chosen is None:
            chosen = min(loads, key=loads.get)
        table.add(keys, chosen)
        loads[chosen] += 1
        assert max(loads.values()) <= min(loads.values()) + 4


@given(steps, st.sets(st.integers(0, 2)))
def test_nothing_is_sent_to_who_is_gone(steps, left):
    table = PrefixTable(most_ahead=100)
    for conversation, place, _ in steps:
        table.add(keys_of(conversation), place)
    table.keep(left)
    for conversation, _, _ in steps:
        keys, loads = keys_of(conversation), dict.fromkeys(range(3), 0)
        assert table.choose(keys, loads) in {None, *left}
    if not left:
        assert len(table) == 0


@given(steps)
def test_a_table_has_a_bound_and_keeps_what_was_asked_for_last(steps):
    table = PrefixTable(n_keys=5)
    for conversation, place, _ in steps:
        keys = keys_of(conversation)
        table.add(keys, place)
        assert len(table) <= 5
        held = table.choose(keys[:1], {place: 0})
        assert held == place


def test_a_beginning_is_held_by_several():
    table = PrefixTable(most_ahead=1)
    keys = keys_of(["system"])
    table.add(keys, "a")
    assert table.choose(keys, {"a": 1, "b": 0}) == "a"
    assert table.choose(keys, {"a": 2, "b": 0}) is None
    table.add(keys, "b")
    assert table.choose(keys, {"a": 1, "b": 0}) == "b"
    for other in "cdef":
        table.add(keys, other)
    assert table.choose(keys, dict.fromkeys("ab", 0)) is None  # four are remembered


def test_keys_of_all_apis_grow_with_the_conversation():
    def keys(path, **fields):
        return prefix_keys(path, msgspec.json.encode(fields))

    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    for path, name in (
        ("/v1/chat/completions", "messages"),
        ("/v1/messages", "messages"),
        ("/api/chat", "messages"),
        ("/v1/responses", "input"),
    ):
        one, two = keys(path, **{name: said[:1]}), keys(path, **{name: said})
        assert (len(one), len(two)) == (1, 2)
        assert two[:1] == one
    long = "x" * 2000
    one, two = keys("/v1/completions", prompt=long), keys("/completion", prompt=long + "y" * 600)
    assert common(one, two) == 3
    assert common(keys("/v1/completions", prompt=[1] * 900), keys("/x", prompt=[1] * 999)) == 3
    assert keys_of(["a"]) != keys_of(["a"], tools=[{"name": "f"}])
    assert keys_of(["a"]) != keys_of(["a"], system="be brief")
    assert common(keys_of(["a"]), keys_of(["a"], lora=[{"id": 0, "scale": 1.0}])) == 0
    for path in ("/v1/chat/completions", "/v1/messages", "/api/chat"):  # names may be adapters'
        one, other = (keys(path, messages=said, model=name) for name in ("one", "other"))
        assert common(one, other) == 0 < len(one)
    assert keys("/v1/embeddings", input="text") == keys("/tokenize", content="x") == ()
    assert prefix_keys(PATH, b"{") == prefix_keys(PATH, b"[]") == prefix_keys(PATH, b"") == ()
    assert len(keys("/v1/completions", prompt="x" * 10**6)) == 512
