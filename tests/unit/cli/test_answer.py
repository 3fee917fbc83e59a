import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pdd.cli.answer import AnswerPrinter, printable
from pdd.client import Delta


def delta(source: str, text: str, tokens: int = 1) -> Delta:
    return Delta(text, 0, tuple(range(tokens)), source, ())


def shown(deltas: list[Delta], *, colours: bool) -> str:
    console = Console(
        file=io.StringIO(), force_terminal=colours, color_system="standard" if colours else None, no_color=not colours, width=80
    )
    printer = AnswerPrinter(console)
    for one in deltas:
        printer.show(one)
    printer.finish()
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


ANSWER = [delta("prefill-0", "One"), delta("relay-0", " two"), delta("relay-0", " three"), delta("main-0", " four [x]", 2)]


def test_without_colours_a_marker_stands_where_the_instance_changes() -> None:
    assert shown(ANSWER, colours=False).startswith("[prefill-0]One[relay-0] two three[main-0] four [x]\n")


def test_with_colours_each_instance_has_its_own_and_there_are_no_markers() -> None:
    text = shown(ANSWER, colours=True)
    assert "[relay-0]" not in text
    colours = {word: text.split(word)[0].rpartition("\x1b[")[2] for word in ("One", " two", " three", " four")}
    assert colours[" two"] == colours[" three"]
    assert len(set(colours.values())) == 3


def test_the_legend_counts_tokens_by_instance() -> None:
    assert "made by  prefill-0: 1 token   relay-0: 2 tokens   main-0: 2 tokens" in shown(ANSWER, colours=False)


def test_a_token_without_text_is_counted_and_shows_no_marker() -> None:
    text = shown([delta("relay-0", "a"), delta("main-0", ""), delta("relay-0", "b")], colours=False)
    assert text.startswith("[relay-0]ab\n")
    assert "main-0: 1 token" in text


def test_markup_in_an_answer_is_text() -> None:
    assert "[bold]x[/bold] :smile:" in shown([delta("main-0", "[bold]x[/bold] :smile:")], colours=False)


@given(st.text())
def test_nothing_that_a_terminal_would_obey_is_printed(text: str) -> None:
    safe = printable(text)
    assert len(safe) == len(text)
    assert all(character.isprintable() or character in "\n\t" for character in safe)


def test_emoji_and_other_scripts_are_printed_as_they_are() -> None:
    assert printable("안녕 🙂 สวัสดี\n\tπ") == "안녕 🙂 สวัสดี\n\tπ"
