from pathlib import Path

from gateway.backtests.traffic import Traffic, part_of

ROW = '{"at_s": %d, "prompt_tokens": 100, "output_tokens": 5}\n'


def traffic(*traces: Path, most: int | None = None) -> Traffic:
    return Traffic(traces=traces, config=None, since=None, until=None, team="a", model="m", shares=(), most=most)


def test_traces_are_merged_by_time_and_counted_before_they_are_read(tmp_path):
    """What is asked for bounds both."""
    odd, even = (tmp_path / name for name in ("odd.jsonl", "even.jsonl"))
    odd.write_text("".join(ROW % n for n in range(1, 10, 2)))
    even.write_text("".join(ROW % n for n in range(0, 10, 2)))
    assert [call.at_s for call in traffic(odd, even).calls()] == list(range(10))
    assert traffic(odd, even).count() == 10
    assert traffic(odd, even, most=7).count() == len(list(traffic(odd, even, most=7).calls())) == 7


def test_the_last_day_is_part_of_the_range():
    """Two days named are two days read."""
    part = part_of("2026-11-01", "2026-11-02")
    assert part.until_us - part.since_us == 2 * 86_400 * 1_000_000
