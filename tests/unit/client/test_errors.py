import grpc
import pytest

from pdd.client.errors import (
    AnswerCancelled,
    ClientError,
    DeadlineExceeded,
    InvalidRequest,
    NoSuchModel,
    Overloaded,
    RequestFailed,
    Unavailable,
    client_error,
    report_of,
)

STATUS = grpc.StatusCode


@pytest.mark.parametrize(
    ("status", "code", "kind", "does"),
    [
        (STATUS.NOT_FOUND, "model_not_found", NoSuchModel, r"list_models\(\)"),
        (STATUS.INVALID_ARGUMENT, "", InvalidRequest, "^so$"),
        (STATUS.RESOURCE_EXHAUSTED, "overloaded", Overloaded, "ask again later"),
        (STATUS.DEADLINE_EXCEEDED, "", DeadlineExceeded, "within 30 s.*timeout_s"),
        (STATUS.DEADLINE_EXCEEDED, "deadline", DeadlineExceeded, "look at the link"),
        (STATUS.UNAVAILABLE, "no_instance", Unavailable, "/ready"),
        (STATUS.UNAVAILABLE, "", Unavailable, "no gateway at gateway:1.*pdd up"),
        (STATUS.CANCELLED, "", AnswerCancelled, "so"),
        (STATUS.INTERNAL, "engine_failed", RequestFailed, "INTERNAL.*so"),
        # gRPC's own, of a message over its bound: to wait would not mend it.
        (STATUS.RESOURCE_EXHAUSTED, "", RequestFailed, "RESOURCE_EXHAUSTED.*so"),
    ],
)
def test_each_failure_is_of_its_kind_and_says_what_to_do(
    status: grpc.StatusCode, code: str, kind: type[ClientError], does: str
) -> None:
    error = client_error(report_of(status, "so", (("x-pdd-code", code),) if code else None), "gateway:1", 30.0)
    assert type(error) is kind
    with pytest.raises(kind, match=does):
        raise error


def test_a_gateway_that_is_lost_was_there() -> None:
    report = report_of(STATUS.UNAVAILABLE, "Socket closed", (("x-request-id", "mine"),))
    with pytest.raises(Unavailable, match=r"the gateway at gateway:1 was lost during the request .*: ask again"):
        raise client_error(report, "gateway:1", 30.0)


def test_what_the_gateway_tells_beside_the_status_is_kept() -> None:
    trailing = (("x-request-id", "mine"), ("x-pdd-field", "stop"), ("some-bin", b"\x00"))
    error = client_error(report_of(STATUS.INVALID_ARGUMENT, "stop: so", trailing), "gateway:1", 30.0)
    assert isinstance(error, InvalidRequest)
    assert (error.request_id, error.field) == ("mine", "stop")
