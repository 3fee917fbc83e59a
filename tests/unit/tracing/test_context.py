import pytest

from pdd.tracing.context import CONTEXT_BYTES, Parent, TraceContext, parent_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CONTEXT = TraceContext(int(TRACE, 16), int(SPAN, 16))


def test_a_context_crosses_the_mesh_in_24_bytes() -> None:
    data = CONTEXT.to_bytes()
    assert data.hex() == TRACE + SPAN
    assert len(data) == CONTEXT_BYTES == 24
    assert TraceContext.from_bytes(data) == CONTEXT


def test_no_bytes_are_no_context_and_some_are_an_error() -> None:
    assert TraceContext.from_bytes(b"") is None
    with pytest.raises(ValueError, match="24 bytes"):
        TraceContext.from_bytes(bytes(23))


@pytest.mark.parametrize(("flags", "sampled"), [("01", True), ("03", True), ("00", False), ("02", False)])
def test_a_traceparent_names_the_clients_span(flags: str, sampled: bool) -> None:
    assert parent_of(f"00-{TRACE}-{SPAN}-{flags}") == Parent(CONTEXT, sampled)


def test_a_newer_version_may_say_more() -> None:
    assert parent_of(f"cc-{TRACE}-{SPAN}-01-what-the-future-brings") == Parent(CONTEXT, True)


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "nonsense",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
    ],
)
def test_a_malformed_traceparent_is_none(wrong: str) -> None:
    assert parent_of(wrong) is None


def test_a_stages_id_is_known_to_all_who_know_the_root() -> None:
    elsewhere = TraceContext.from_bytes(CONTEXT.to_bytes())
    assert elsewhere is not None
    assert elsewhere.stage_id("main") == CONTEXT.stage_id("main")
    other = TraceContext(CONTEXT.trace_id, CONTEXT.span_id + 1)
    assert len({CONTEXT.span_id, CONTEXT.stage_id("main"), CONTEXT.stage_id("relay"), other.stage_id("main")}) == 4
