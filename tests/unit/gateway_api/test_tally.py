from prometheus_client import CollectorRegistry

from gateway.tally import CounterTally, HistogramTally


def test_a_histogram_counts_each_value_in_every_bucket_that_reaches_it() -> None:
    registry = CollectorRegistry()
    tally = HistogramTally("pdd_gap_seconds", "Gaps", (0.01, 0.1, 1.0))
    registry.register(tally)
    for value in (0.01, 0.05, 0.1, 0.11, 7.0):
        tally.observe(value)
    found = {end: registry.get_sample_value("pdd_gap_seconds_bucket", {"le": end}) for end in ("0.01", "0.1", "1.0", "+Inf")}
    assert found == {"0.01": 1, "0.1": 3, "1.0": 4, "+Inf": 5}
    assert registry.get_sample_value("pdd_gap_seconds_count") == 5
    assert registry.get_sample_value("pdd_gap_seconds_sum") == 0.01 + 0.05 + 0.1 + 0.11 + 7.0


def test_a_histogram_without_values_is_there() -> None:
    registry = CollectorRegistry()
    registry.register(HistogramTally("pdd_gap_seconds", "Gaps", (0.01,)))
    assert registry.get_sample_value("pdd_gap_seconds_count") == 0


def test_a_counter_adds_up_by_label() -> None:
    registry = CollectorRegistry()
    tally = CounterTally("pdd_output_tokens", "Tokens", "source")
    registry.register(tally)
    for source, count in (("relay-0", 2), ("main-0", 5), ("relay-0", 1)):
        tally.add(source, count)
    found = {source: registry.get_sample_value("pdd_output_tokens_total", {"source": source}) for source in ("relay-0", "main-0")}
    assert found == {"relay-0": 3, "main-0": 5}


def test_what_was_read_before_counts_once() -> None:
    registry = CollectorRegistry()
    gaps, tokens = HistogramTally("pdd_gap_seconds", "Gaps", (0.01,)), CounterTally("pdd_output_tokens", "Tokens", "source")
    registry.register(gaps)
    registry.register(tokens)
    for count in (1, 2):
        gaps.observe(0.5)
        tokens.add("main-0", 3)
        assert registry.get_sample_value("pdd_gap_seconds_count") == count
        assert registry.get_sample_value("pdd_gap_seconds_sum") == 0.5 * count
        assert registry.get_sample_value("pdd_output_tokens_total", {"source": "main-0"}) == 3 * count
