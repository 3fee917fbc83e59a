from __future__ import annotations

from dataclasses import dataclass

from pdd.v1 import prefill_pb2
from services.prefill.frames import Outbox
from services.prefill.links import MAX_LINKS, Links


@dataclass(eq=False)
class Transfer:
    ready_bytes: int = 0


def test_transfers_to_one_target_share_a_meter() -> None:
    links = Links()
    assert links.to("main-0") is links.to("main-0")
    assert links.to("main-0") is not links.to("main-1")


def test_a_load_tells_of_each_target_what_waits_and_how_fast_it_is() -> None:
    links = Links()
    meter, transfer = links.to("main-0"), Transfer()
    links.to("relay-0")
    meter.accepted(transfer, 300)
    meter.sent(300, 0.0)
    meter.acknowledged(100, 0.5)
    meter.acknowledged(100, 0.6)
    main, relay = links.loads(0.6)
    assert (main.target, main.backlog_bytes, round(main.goodput_bytes_s)) == ("main-0", 100, 1000)
    assert (relay.target, relay.backlog_bytes, relay.goodput_bytes_s) == ("relay-0", 0, 0.0)


def test_too_much_is_what_several_transfers_have_ready_beyond_the_bound() -> None:
    links = Links(bound_bytes=100)
    one, other = Transfer(500), Transfer()
    meter = links.to("main-0")
    meter.accepted(one, 500)
    assert links.excess("main-0") is None  # alone, it may be of any size
    meter.accepted(other, 10**6)
    assert links.excess("main-0") is None  # nothing of the other is made yet
    other.ready_bytes = 1
    assert links.excess("main-0") == (
        "501 bytes in 2 transfers wait for the link to main-0, and 100 may: start this one anew when less does, "
        "or raise PDD_BACKLOG_MB"
    )
    one.ready_bytes = 99
    assert links.excess("main-0") is None
    one.ready_bytes = 500
    links.to("relay-0")
    assert links.excess("relay-0") is None


def test_without_a_bound_nothing_is_too_much() -> None:
    links = Links()
    for size in (10**12, 10**12):
        links.to("main-0").accepted(Transfer(size), size)
    assert links.excess("main-0") is None


def test_idle_links_are_forgotten_longest_unused_first_and_busy_ones_never() -> None:
    links = Links()
    busy = links.to("busy")
    busy.accepted(Transfer(), 1)
    for number in range(MAX_LINKS + 5):
        links.to(f"main-{number}")
    assert len(links.loads(0.0)) == MAX_LINKS
    assert links.to("busy") is busy


def test_a_link_that_moved_is_news() -> None:
    outbox, links = Outbox(), Links()
    meter = links.to("main-0")

    def load() -> prefill_pb2.PrefillLoad:
        return prefill_pb2.PrefillLoad(links=links.loads(0.0))

    assert outbox.take(load()) is not None
    assert outbox.take(load()) is None
    meter.accepted(Transfer(), 5)
    frame = outbox.take(load())
    assert frame is not None
    assert frame.load.links[0].backlog_bytes == 5
