from pdd.v1 import prefill_pb2
from services.prefill import events
from services.prefill.frames import Outbox

IDLE = prefill_pb2.PrefillLoad()
BUSY = prefill_pb2.PrefillLoad(queued_tokens=30)


def test_events_leave_in_the_order_they_came_in() -> None:
    outbox = Outbox()
    outbox.add(events.failed(1, events.BAD_COMMAND, "no"))
    outbox.add(events.wanted(2, "main-0", 3, 300))
    outbox.add(events.released(1))
    frame = outbox.take(BUSY)
    assert frame is not None
    assert [(event.handle, event.WhichOneof("event")) for event in frame.events] == [
        (1, "failed"),
        (2, "wanted"),
        (1, "released"),
    ]
    assert outbox.take(BUSY) is None


def test_a_load_alone_is_a_frame_only_where_the_peer_knows_another() -> None:
    outbox = Outbox()
    assert outbox.take(IDLE) is not None
    assert outbox.take(IDLE) is None
    assert outbox.take(BUSY) is not None


def test_more_than_the_bound_overflows() -> None:
    outbox = Outbox(bound=1)
    outbox.add(events.released(1))
    assert not outbox.overflowing
    outbox.add(events.released(2))
    assert outbox.overflowing
