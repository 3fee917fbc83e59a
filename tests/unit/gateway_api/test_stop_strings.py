import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.stop_strings import StopStrings

SHORT = st.text("ab ", max_size=30)
STOPS = st.lists(st.text("ab ", min_size=1, max_size=5), max_size=4)


def before_first_stop(text: str, stops: list[str]) -> tuple[str, bool]:
    """The reference: the stop that ends first decides, of two that end together the longer."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], True
    return text, False


def fed(pieces: list[str], stops: list[str]) -> tuple[list[str], bool]:
    matcher = StopStrings(stops)
    shown = [matcher.push(piece) for piece in pieces]
    return [*shown, matcher.flush()], matcher.complete


@given(pieces=st.lists(SHORT, max_size=12), stops=STOPS)
def test_text_before_the_first_stop_is_shown_however_it_is_cut(pieces: list[str], stops: list[str]) -> None:
    shown, complete = fed(pieces, stops)
    assert ("".join(shown), complete) == before_first_stop("".join(pieces), stops)


@given(pieces=st.lists(SHORT, max_size=12), stops=STOPS)
def test_no_more_is_kept_back_than_could_begin_a_stop(pieces: list[str], stops: list[str]) -> None:
    matcher = StopStrings(stops)
    taken = shown = ""
    for piece in pieces:
        taken, shown = taken + piece, shown + matcher.push(piece)
        if matcher.complete:
            break
        kept = taken.removeprefix(shown)
        assert not kept or any(stop.startswith(kept) for stop in stops)


@pytest.mark.parametrize(
    ("pieces", "stops", "text"),
    [
        (["Hello", " wo", "rld"], [" world"], "Hello"),  # over three tokens
        (["aab"], ["ab"], "a"),  # a false start inside the match
        (["ab", "ab", "abc"], ["ababc"], "ab"),
        (["one\n", "\ntwo"], ["\n\n", "two"], "one"),  # several: the first to end wins
        (["abc"], ["b", "abc"], "a"),  # "b" ends before "abc" does
        (["xabc"], ["c", "abc"], "x"),  # both end together: the longer
    ],
)
def test_text_ends_before_the_stop_that_completes_first(pieces: list[str], stops: list[str], text: str) -> None:
    shown, complete = fed(pieces, stops)
    assert ("".join(shown), complete) == (text, True)


def test_nothing_is_shown_after_the_stop() -> None:
    matcher = StopStrings(["."])
    assert (matcher.push("a.b"), matcher.push("c"), matcher.flush()) == ("a", "", "")
