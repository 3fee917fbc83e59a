"""Bytes over the relay, on real sockets. When they arrive is the model's affair (`tests/unit/wan/test_link.py`)."""

from __future__ import annotations

import asyncio
import socket
import struct
from random import Random

import pytest

from tests.eventually import eventually
from tests.mesh.wan.peers import HOST, Connect, count, deaf, echo, exchange, forwarded, listening
from wan.forwards import MAX_CONNECTIONS
from wan.link import LinkSettings, Outage
from wan.relay import ForwardRefused, Relay

MIB = 1 << 20


async def test_bytes_arrive_unchanged_in_both_directions(relay: Relay, connect: Connect) -> None:
    payload = Random(1).randbytes(3 * MIB)
    async with forwarded(relay, echo) as address:
        reader, writer = await connect(address)
        async with asyncio.TaskGroup() as group:
            group.create_task(_send(writer, payload))
            received = group.create_task(reader.readexactly(len(payload)))
    assert received.result() == payload


async def _send_for_ever(writer: asyncio.StreamWriter) -> None:
    while True:
        await _send(writer, bytes(65536))


async def _send(writer: asyncio.StreamWriter, payload: bytes) -> None:
    writer.write(payload)
    await writer.drain()


async def test_end_of_data_is_passed_on_after_the_data_and_the_answer_still_comes(relay: Relay, connect: Connect) -> None:
    await relay.configure(LinkSettings(rate_mbit=100, rtt_ms=4, jitter_ms=2, loss=0.02))
    async with forwarded(relay, count) as address:
        reader, writer = await connect(address)
        writer.write(bytes(MIB))
        writer.write_eof()
        assert int.from_bytes(await reader.read(), "big") == MIB


async def test_counters_tell_bytes_by_direction_connection_and_forward(relay: Relay, connect: Connect) -> None:
    async with forwarded(relay, count, "main-0") as counted, forwarded(relay, echo, "main-1") as echoed:
        for size in (1000, 234_567):
            reader, writer = await connect(counted)
            writer.write(bytes(size))
            writer.write_eof()
            assert len(await reader.read()) == 8
        streams = await connect(echoed)
        await exchange(streams, bytes(99))
        await eventually(lambda: not any(c.open for c in relay.counters().forwards[0].connections))
        counters = relay.counters()
    first, second = counters.forwards
    assert [(c.id, c.a_to_b_bytes, c.b_to_a_bytes) for c in first.connections] == [(1, 1000, 8), (2, 234_567, 8)]
    assert (first.name, first.a_to_b_bytes, first.b_to_a_bytes) == ("main-0", 235_567, 16)
    assert [(c.open, c.a_to_b_bytes, c.b_to_a_bytes) for c in second.connections] == [(True, 99, 99)]
    assert (counters.a_to_b_bytes, counters.b_to_a_bytes) == (235_666, 115)


async def test_site_b_reaches_a_target_in_site_a_and_its_bytes_are_counted_the_other_way(relay: Relay, connect: Connect) -> None:
    async with listening(count) as target:
        address = await relay.open_from_b("registry", target, f"{HOST}:0")
        reader, writer = await connect(address)
        writer.write(bytes(1000))
        writer.write_eof()
        assert len(await reader.read()) == 8
        (registry,) = relay.counters().forwards
    assert (registry.name, registry.a_to_b_bytes, registry.b_to_a_bytes) == ("registry", 8, 1000)


async def test_totals_keep_what_deleted_forwards_carried(relay: Relay, connect: Connect) -> None:
    async with forwarded(relay, echo) as address:
        await exchange(await connect(address), bytes(10))
        assert await relay.release("main-0")
        counters = relay.counters()
    assert (counters.forwards, counters.a_to_b_bytes, counters.b_to_a_bytes) == ((), 10, 10)


async def test_line_is_no_faster_than_configured(relay: Relay, connect: Connect) -> None:
    loop = asyncio.get_running_loop()
    await relay.configure(LinkSettings(rate_mbit=8, rtt_ms=20))
    async with forwarded(relay, count) as address:
        start_s = loop.time()
        reader, writer = await connect(address)
        writer.write(bytes(200_000))
        writer.write_eof()
        assert int.from_bytes(await reader.read(), "big") == 200_000
        # A handshake, the bytes at one in a microsecond, and half a round trip for each direction; clocks tick in milliseconds.
        assert loop.time() - start_s > 0.020 + 0.200 + 0.020 - 0.005


async def test_new_rate_takes_effect_in_mid_transfer(relay: Relay, connect: Connect) -> None:
    await relay.configure(LinkSettings(rate_mbit=0.5))  # a mebibyte would take 17 s
    async with forwarded(relay, count) as address:
        reader, writer = await connect(address)
        writer.write(bytes(MIB))
        writer.write_eof()
        await eventually(lambda: relay.counters().a_to_b_bytes > 0)
        assert relay.counters().a_to_b_bytes < MIB
        await relay.configure(LinkSettings())
        async with asyncio.timeout(10):
            assert int.from_bytes(await reader.read(), "big") == MIB


async def test_destination_that_does_not_read_stops_its_own_source_and_nobody_else(relay: Relay, connect: Connect) -> None:
    async with forwarded(relay, deaf, "deaf") as deaf_address, forwarded(relay, echo, "echo") as echo_address:
        _, stuck = await connect(deaf_address)
        blocked = asyncio.create_task(_send(stuck, bytes(64 * MIB)))
        await exchange(await connect(echo_address), bytes(MIB))
        before = -1
        while (now := relay.counters().forwards[0].a_to_b_bytes) != before:  # until it is stuck
            before = now
            await exchange(await connect(echo_address), bytes(MIB))
        assert not blocked.done()
        assert before < 16 * MIB
        blocked.cancel()


async def test_name_points_new_connections_to_its_new_target(relay: Relay, connect: Connect) -> None:
    async with listening(echo) as first, listening(count) as second:
        address = await relay.lease("main-0", first)
        old = await connect(address)
        assert await exchange(old, b"old") == b"old"
        assert await relay.lease("main-0", second) == address
        reader, writer = await connect(address)
        writer.write(b"new")
        writer.write_eof()
        assert await reader.read() == (3).to_bytes(8, "big")
        assert await exchange(old, b"still old") == b"still old"


async def test_released_port_resets_its_connections_and_is_closed(relay: Relay, connect: Connect) -> None:
    async with forwarded(relay, echo) as address:
        streams = await connect(address)
        await exchange(streams, b"x")
        assert await relay.release("main-0")
        assert not await relay.release("main-0")
        with pytest.raises(ConnectionResetError):
            await streams[0].read()
        with pytest.raises(ConnectionRefusedError):
            await connect(address)


async def test_unreachable_target_resets_the_connection(relay: Relay, connect: Connect) -> None:
    async with listening(echo) as target:
        pass
    reader, _ = await connect(await relay.lease("main-0", target))
    with pytest.raises(ConnectionResetError):
        await reader.read()


async def test_reset_by_one_side_reaches_the_other_behind_the_data(relay: Relay, connect: Connect) -> None:
    await relay.configure(LinkSettings(rtt_ms=4))

    async def answer_and_break(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.write(b"last words")
        await asyncio.sleep(0)  # let them go out
        _reset_on_close(writer)
        writer.close()

    async with forwarded(relay, answer_and_break) as address:
        reader, writer = await connect(address)
        writer.write(b"x")
        assert await reader.readexactly(10) == b"last words"
        with pytest.raises(ConnectionResetError):
            await reader.read()


def _reset_on_close(writer: asyncio.StreamWriter) -> None:
    transport_socket: socket.socket = writer.get_extra_info("socket")
    transport_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def test_sink_that_breaks_after_its_end_of_data_still_resets_the_source(relay: Relay, connect: Connect) -> None:
    async def say_goodbye_and_break(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.write_eof()
        writer.close()  # closes with bytes unread or still to come: what is sent now is answered with a reset

    async with forwarded(relay, say_goodbye_and_break) as address:
        reader, writer = await connect(address)
        writer.write(b"x")
        assert await reader.read() == b""
        with pytest.raises(ConnectionError):
            await _send_for_ever(writer)


async def test_connection_broken_on_both_sides_ends(relay: Relay, connect: Connect) -> None:
    server_side: list[asyncio.StreamWriter] = []

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_side.append(writer)
        await echo(reader, writer)

    async with forwarded(relay, keep) as address:
        streams = await connect(address)
        await exchange(streams, b"x")
        for writer in (streams[1], *server_side):
            _reset_on_close(writer)
            writer.close()
        await eventually(lambda: not any(c.open for c in relay.counters().forwards[0].connections))


async def test_connections_of_a_forward_are_bounded(relay: Relay, connect: Connect) -> None:
    async with forwarded(relay, echo) as address:
        streams = [await connect(address) for _ in range(MAX_CONNECTIONS)]
        for one in streams:
            await exchange(one, b"x")
        reader, _ = await connect(address)
        with pytest.raises(ConnectionResetError):
            await reader.read()


async def test_leaving_the_relay_resets_everyone(connect: Connect) -> None:
    async with listening(echo) as target:
        async with Relay(LinkSettings(), HOST, Random(1)) as relay:
            streams = await connect(await relay.lease("main-0", target))
            await exchange(streams, b"x")
        with pytest.raises(ConnectionResetError):
            await streams[0].read()


class TestOutage:
    async def test_refuse_turns_newcomers_away_and_lets_the_others_go_on(self, relay: Relay, connect: Connect) -> None:
        async with forwarded(relay, echo) as address:
            old = await connect(address)
            await exchange(old, b"x")
            await relay.configure(LinkSettings(outage=Outage.REFUSE))
            with pytest.raises(ConnectionRefusedError):
                await connect(address)
            assert await exchange(old, b"still there") == b"still there"
            await relay.configure(LinkSettings())
            new = await connect(address)
            assert await exchange(new, b"back") == b"back"

    async def test_port_leased_while_refused_opens_when_the_outage_ends(self, relay: Relay, connect: Connect) -> None:
        await relay.configure(LinkSettings(outage=Outage.REFUSE))
        async with forwarded(relay, echo) as address:
            with pytest.raises(ConnectionRefusedError):
                await connect(address)
            await relay.configure(LinkSettings())
            streams = await connect(address)
            assert await exchange(streams, b"x") == b"x"

    async def test_port_taken_by_someone_else_meanwhile_is_an_error_that_names_it(self, relay: Relay, connect: Connect) -> None:
        async with forwarded(relay, echo) as address, forwarded(relay, echo, "main-1") as other:
            await relay.configure(LinkSettings(outage=Outage.REFUSE))
            port = int(address.rpartition(":")[2])
            with socket.create_server((HOST, port)), pytest.raises(ForwardRefused, match=address):
                await relay.configure(LinkSettings())
            assert await exchange(await connect(other), b"x") == b"x"
            await relay.configure(LinkSettings())
            streams = await connect(address)
            assert await exchange(streams, b"x") == b"x"

    async def test_reset_breaks_running_connections_and_newcomers_until_it_ends(self, relay: Relay, connect: Connect) -> None:
        async with forwarded(relay, echo) as address:
            old = await connect(address)
            await exchange(old, b"x")
            await relay.configure(LinkSettings(outage=Outage.RESET))
            with pytest.raises(ConnectionResetError):
                await old[0].read()
            reader, _ = await connect(address)
            with pytest.raises(ConnectionResetError):
                await reader.read()
            await relay.configure(LinkSettings())
            new = await connect(address)
            assert await exchange(new, b"back") == b"back"

    async def test_black_hole_holds_bytes_and_newcomers_and_delivers_when_it_ends(self, relay: Relay, connect: Connect) -> None:
        async with forwarded(relay, echo) as address, forwarded(relay, echo, "witness"):
            old = await connect(address)
            await exchange(old, b"x")
            await relay.configure(LinkSettings(outage=Outage.BLACK_HOLE))
            new = await connect(address)
            for _, writer in (old, new):
                writer.write(b"held")
            await eventually(lambda: len(relay.counters().forwards[0].connections) == 2)
            answers = [asyncio.create_task(reader.readexactly(4)) for reader, _ in (old, new)]
            async with listening(echo) as aside:  # time for the loop to move what it would move
                streams = await connect(aside)
                for _ in range(50):
                    await exchange(streams, b"x")
            assert relay.counters().a_to_b_bytes == 1
            await relay.configure(LinkSettings())
            assert await asyncio.gather(*answers) == [b"held", b"held"]
