import hypothesis.strategies as st
from hypothesis import given

from pdd.engine.sim.digest import KV_BYTES, ROOT
from pdd.engine.sim.pages import DEVICE_DTYPES, PagedKv, PagePool

page_tokens = st.integers(1, 40)
dtypes = st.sampled_from(sorted(DEVICE_DTYPES))
runs = st.lists(st.integers(1, 50), max_size=5)  # tokens of successive appends


def kv_of(tokens: int, salt: int = 0) -> bytes:
    return b"".join((17 * n + salt).to_bytes(KV_BYTES, "big") for n in range(1, tokens + 1))


@given(page_tokens, dtypes, runs, st.data())
def test_any_run_of_tokens_reads_as_it_was_written(pages: int, dtype: str, counts: list[int], data: st.DataObject) -> None:
    held, total = PagedKv(PagePool(pages, dtype)), sum(counts)
    kv = kv_of(total)
    at = 0
    for count in counts:
        held.append(kv[at * KV_BYTES : (at + count) * KV_BYTES])
        at += count
        assert held.last() == kv[(at - 1) * KV_BYTES : at * KV_BYTES]
    assert held.tokens == total
    first = data.draw(st.integers(0, total))
    last = data.draw(st.integers(first, total))
    assert held.read(first, last) == kv[first * KV_BYTES : last * KV_BYTES]


@given(page_tokens, dtypes, st.integers(0, 50), st.integers(1, 50))
def test_tokens_one_by_one_lie_as_a_run_does(pages: int, dtype: str, before: int, count: int) -> None:
    held, kv = PagedKv(PagePool(pages, dtype)), kv_of(before + count)
    held.append(kv[: before * KV_BYTES])
    for at in range(before, before + count):
        token = kv[at * KV_BYTES : (at + 1) * KV_BYTES]
        held.append_token(token)
        assert held.last() == token
    assert (held.tokens, held.read(0, before + count)) == (before + count, kv)


@given(page_tokens, dtypes, st.binary(min_size=KV_BYTES, max_size=KV_BYTES))
def test_every_pattern_of_bits_survives_the_device(pages: int, dtype: str, kv: bytes) -> None:
    held = PagedKv(PagePool(pages, dtype))
    held.append(kv)
    assert held.read(0, 1) == kv


def test_an_empty_slot_has_what_stands_before_the_first_token() -> None:
    held = PagedKv(PagePool(16, "f16"))
    assert (held.last(), held.read(0, 0)) == (ROOT, b"")


@given(page_tokens, dtypes, st.integers(1, 50), st.integers(1, 50))
def test_pages_that_are_used_again_show_nothing_of_what_they_held(pages: int, dtype: str, before: int, after: int) -> None:
    pool = PagePool(pages, dtype)
    old, neighbour, new = PagedKv(pool), PagedKv(pool), PagedKv(pool)
    old.append(kv_of(before, salt=1))
    neighbour.append(kv_of(7, salt=2))
    old.clear()
    assert (old.tokens, old.last()) == (0, ROOT)
    new.append(kv_of(after, salt=3))
    assert new.read(0, after) == kv_of(after, salt=3)
    assert neighbour.read(0, 7) == kv_of(7, salt=2)


@given(page_tokens)
def test_a_wider_type_takes_more_of_the_device(pages: int) -> None:
    assert PagePool(pages, "f32").page_bytes == 2 * PagePool(pages, "f16").page_bytes == 2 * pages * KV_BYTES
