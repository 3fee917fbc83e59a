import pytest

from gateway.generation import Usage
from gateway.tokenlog import OutOfOrder, TokenLog


def test_log_takes_its_next_index_only() -> None:
    log = TokenLog()
    log.append(0, (7,))
    log.append(1, (8, 9))
    for wrong_index in (0, 2, 4):
        with pytest.raises(OutOfOrder, match="3 is next"):
            log.append(wrong_index, (1,))
    assert log.ids(0, 3) == (7, 8, 9)
    assert log.next_index == 3


def test_log_refuses_to_give_ids_that_it_does_not_have() -> None:
    log = TokenLog()
    log.append(0, (7, 8))
    assert log.ids(1, 2) == (8,)
    with pytest.raises(IndexError):
        log.ids(1, 3)


@pytest.mark.parametrize(("shown", "completion"), [(None, 3), (2, 2), (9, 3)])
def test_usage_counts_what_was_shown(shown: int | None, completion: int) -> None:
    log = TokenLog()
    log.append(0, (7, 8, 9))
    assert log.usage(10, 4, shown) == Usage(10, completion, 4)
