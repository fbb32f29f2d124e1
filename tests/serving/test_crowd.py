"""A crowd of clients: some leave, some are slow, some send nonsense; the others get their text."""

import asyncio
import json
import os
import random
import resource

from harness.served import serving

import mtpcore
from mtpcore.serving import ServerSettings

N = int(os.environ.get("MTPCORE_CROWD", "200"))
SETTINGS = ServerSettings(name="demo", max_waiting=10_000, max_body=20_000, keep_alive=0.5)


def body_of(i):
    draft = [False, {"draft": 3}, {"draft": "auto"}][i % 3]
    return {
        "prompt": f"x{i % 10} = ",
        "max_tokens": 5 + i % 20,
        "seed": i % 7,
        "speculative": draft,
    }


def request_of(body, length=None):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        f"content-length: {len(raw) if length is None else length}\r\n\r\n"
    )
    return head.encode() + raw


async def exchange(port, raw, read):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 12)
    try:
        writer.write(raw)
        return await read(reader, writer)
    finally:
        writer.close()


async def read_all(reader, writer):
    found = await reader.read(-1)
    head, _, body = found.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


async def leave_soon(reader, writer):
    await asyncio.sleep(random.Random(id(reader)).random() * 0.3)
    writer.transport.abort()


async def read_slowly(reader, writer):
    found = b""
    while chunk := await reader.read(64):
        found += chunk
        await asyncio.sleep(0.002)
    return int(found.split()[1]), found.partition(b"\r\n\r\n")[2]


async def close_half(reader, writer):
    writer.write_eof()
    return await reader.read(-1)  # it has left


async def client(port, i):
    """Be one of the crowd; return what came of it."""
    kind, body = i % 8, body_of(i)
    if kind == 0:
        return await exchange(port, request_of(body | {"stream": True}), leave_soon)
    if kind == 1:
        return await exchange(port, request_of(body), leave_soon)
    if kind == 2:
        return await exchange(port, request_of(b'{"prompt": '), read_all)
    if kind == 3:
        return await exchange(port, request_of(b" " * 30_000), read_all)
    if kind == 4:
        return await exchange(port, request_of(body | {"stream": True}), read_slowly)
    if kind == 5:
        return await exchange(port, request_of(b'{"prompt"', 500), leave_soon)
    if kind == 6:
        return await exchange(port, request_of(body), close_half)
    return await exchange(port, request_of(body), read_all)


def text_of(i, found):
    if i % 8 == 4:
        lines = [line for line in found.decode().splitlines() if line.startswith("data: {")]
        chunks = [json.loads(line[6:]) for line in lines]
        return "".join(one["choices"][0]["text"] for one in chunks if one["choices"])
    return json.loads(found)["choices"][0]["text"]


def test_a_crowd_is_served_and_leaves_nothing(model):
    with mtpcore.LM(model, n_ctx=100, n_seq_max=4, threads=1) as lm:
        own = {
            i: lm.generate(f"x{i % 10} = ", max_tokens=5 + i % 20, seed=i % 7, draft=0).text
            for i in range(min(N, 840))
        }
        with serving(lm, SETTINGS) as url:
            port = int(url.rsplit(":", 1)[1])

            async def crowd(begin):
                clients = (client(port, i) for i in range(begin, min(begin + 200, N)))
                return await asyncio.gather(*clients, return_exceptions=True)

            asyncio.run(crowd(0))
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for begin in range(0, N, 200):
                for i, found in enumerate(asyncio.run(crowd(begin)), begin):
                    if i % 8 in (0, 1, 5, 6):
                        continue
                    assert isinstance(found, tuple), (i, found)
                    if i % 8 in (2, 3):
                        assert found[0] == {2: 400, 3: 413}[i % 8]
                    else:
                        assert found[0] == 200, found
                        assert text_of(i, found[1]) == own[i % 840]
        assert lm.n_running == 0
        assert lm.generator.cross.llm.n_seq_max == 4
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 40_000, f"{grown} kB more"
