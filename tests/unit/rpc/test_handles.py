from pdd.rpc.handles import EndedHandles


def test_what_has_ended_is_remembered() -> None:
    ended = EndedHandles()
    ended.add(3)
    assert 3 in ended
    assert 4 not in ended


def test_the_memory_is_bounded_and_forgets_the_oldest() -> None:
    ended = EndedHandles(remembered=2)
    for number in (1, 2, 2, 3):
        ended.add(number)
    assert [number in ended for number in (1, 2, 3)] == [False, True, True]
