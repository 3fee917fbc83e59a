"""Commands that can't be meant, and peers that can't be spoken to."""

from __future__ import annotations

from dataclasses import replace

import grpc
import pytest

from pdd.engine.sim.reference import continuation
from pdd.identity import RequestId
from pdd.rpc.channel import open_channel
from pdd.v1 import decode_pb2, decode_pb2_grpc, identity_pb2, prefill_pb2
from tests.mesh.services.conftest import Site
from tests.mesh.services.gateways import HELLO, DecodeStream, attached_decoder, attached_prefill
from tests.mesh.services.instances import greedy, prompt

REQUEST = RequestId(5, 1)
IDS = prompt(40)


async def test_a_command_for_an_unknown_handle_is_answered_with_an_error(site: Site) -> None:
    await site.to_main.extend(9, 0, [1])
    assert (await site.to_main.until_closed(9)).error.code == decode_pb2.HANDLE_ERROR_CODE_UNKNOWN_HANDLE
    await site.to_prefill.abort(9)
    assert await site.to_prefill.until_released(9) == ["failed", "released"]
    assert site.to_prefill.told[9][0].failed.code == prefill_pb2.PREFILL_ERROR_CODE_UNKNOWN_HANDLE


async def test_a_relay_takes_no_extend(site: Site) -> None:
    await site.to_relay.admit(1, REQUEST, IDS, greedy(9), decode_on_commit=True)
    await site.to_relay.extend(1, 0, [1])
    error = (await site.to_relay.until_closed(1)).error
    assert error.code == decode_pb2.HANDLE_ERROR_CODE_BAD_COMMAND
    assert "a relay takes no handoff" in error.message
    await site.until_free()


@pytest.mark.parametrize("role", ["relay", "main"])
async def test_each_role_demands_its_way_to_start(site: Site, role: str) -> None:
    stream = site.to_relay if role == "relay" else site.to_main
    await stream.admit(1, REQUEST, IDS, greedy(9), decode_on_commit=role == "main")
    error = (await stream.until_closed(1)).error
    assert error.code == decode_pb2.HANDLE_ERROR_CODE_BAD_COMMAND
    assert f"decode_on_commit: on a {role} it must be" in error.message


async def test_bad_sampling_is_refused_by_field(site: Site) -> None:
    bad = replace(greedy(9), top_p=3.0)
    await site.to_main.admit(1, REQUEST, IDS, bad)
    assert "sampling.top_p" in (await site.to_main.until_closed(1)).error.message
    await site.to_prefill.start(1, REQUEST, IDS, bad, [site.main.target])
    assert await site.to_prefill.until_released(1) == ["failed", "released"]
    assert "sampling.top_p" in site.to_prefill.told[1][0].failed.message


async def test_one_request_under_two_handles_is_refused_and_the_first_goes_on(site: Site) -> None:
    await site.to_main.admit(1, REQUEST, IDS, greedy(9))
    await site.to_main.admit(2, REQUEST, IDS, greedy(9))
    assert (await site.to_main.until_closed(2)).error.code == decode_pb2.HANDLE_ERROR_CODE_BAD_COMMAND
    await site.to_prefill.start(1, REQUEST, IDS, greedy(9), [site.main.target])
    await site.to_main.until(lambda: site.to_main.told[1].kv_ready)


async def test_a_newer_attempt_outdates_the_older_one(site: Site) -> None:
    await site.to_main.admit(1, REQUEST, IDS, greedy(9))
    await site.to_main.admit(2, replace(REQUEST, attempt=1), IDS, greedy(9))
    assert (await site.to_main.until_closed(1)).error.message.startswith("STALE_ATTEMPT")


async def test_another_prompt_than_the_admitted_one_is_refused(site: Site) -> None:
    await site.to_main.admit(1, REQUEST, prompt(40, seed=1), greedy(9))
    await site.to_prefill.start(1, REQUEST, IDS, greedy(9), [site.main.target])
    assert (await site.to_main.until_closed(1)).error.message.startswith("HASH_MISMATCH")
    await site.to_prefill.until_released(1)
    await site.until_free()


@pytest.mark.parametrize(
    ("first", "named"),
    [
        (decode_pb2.DecodeCommand(stop=decode_pb2.Stop(handle=1)), "'stop'"),
        (decode_pb2.DecodeCommand(hello=identity_pb2.Hello(protocol="pdd.v0")), "'pdd.v0'"),
    ],
    ids=["another command", "another protocol"],
)
async def test_the_first_command_must_be_hello(site: Site, first: decode_pb2.DecodeCommand, named: str) -> None:
    async with open_channel(site.main.address) as channel:
        call = decode_pb2_grpc.DecodeStub(channel).Attach()
        await call.write(first)
        stream = DecodeStream(call)
        await stream.read_all()
    assert stream.error is not None
    assert stream.error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert named in str(stream.error.details())


@pytest.mark.parametrize(
    "command", [decode_pb2.DecodeCommand(), decode_pb2.DecodeCommand(hello=HELLO)], ids=["empty", "a second hello"]
)
async def test_a_command_out_of_place_ends_the_stream(site: Site, command: decode_pb2.DecodeCommand) -> None:
    await site.to_main.call.write(command)
    await site.to_main.until(lambda: site.to_main.over)
    assert site.to_main.error is not None
    assert site.to_main.error.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_each_instance_says_who_it_is_first(site: Site) -> None:
    for hello in (site.to_main.frames[0].hello, site.to_prefill.frames[0].hello):
        assert hello.protocol == "pdd.v1"
    assert getattr(site.to_main.frames[0].hello, "from").id == "main-0"


async def test_detach_ends_the_stream_in_good_order_and_aborts_the_rest(site: Site) -> None:
    await site.to_main.admit(1, REQUEST, IDS, greedy(9))
    await site.to_main.call.write(decode_pb2.DecodeCommand(detach=decode_pb2.Detach()))
    await site.to_prefill.call.write(prefill_pb2.PrefillCommand(detach=prefill_pb2.DetachPrefill()))
    await site.to_main.until(lambda: site.to_main.over)
    await site.to_prefill.until(lambda: site.to_prefill.over)
    assert (site.to_main.error, site.to_prefill.error) == (None, None)
    await site.until_free()


async def test_two_gateways_share_the_instances_and_not_the_handles(site: Site) -> None:
    ids, other_ids = prompt(60, seed=1), prompt(75, seed=2)
    async with attached_decoder(site.relay.address) as other, attached_prefill(site.prefill.address) as other_prefill:
        await site.to_relay.admit(1, RequestId(5, 1), ids, greedy(20), decode_on_commit=True)
        await other.admit(1, RequestId(6, 1), other_ids, greedy(20), decode_on_commit=True)
        await site.to_prefill.start(1, RequestId(5, 1), ids, greedy(20), [site.relay.target])
        await other_prefill.start(1, RequestId(6, 1), other_ids, greedy(20), [site.relay.target])
        assert (await site.to_relay.until_closed(1)).ids == continuation(ids, 20, ignore_eos=True)[1:]
        assert (await other.until_closed(1)).ids == continuation(other_ids, 20, ignore_eos=True)[1:]
        assert await other_prefill.until_released(1)
    await site.until_free()
