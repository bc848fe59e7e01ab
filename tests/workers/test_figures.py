"""Metrics of several processes: sums, below the right headings."""
from __future__ import annotations

from gateway.workers.figures import merged

ONE = b"""# HELP a_total Things
# TYPE a_total counter
a_total{team="x y"} 2.0
# TYPE a_created gauge
a_created{team="x y"} 5.0
# TYPE t histogram
t_bucket{le="1.0"} 1.0
t_count 1.0
# TYPE tollway_policy_problems gauge
tollway_policy_problems 1.0
"""
TWO = ONE.replace(b"2.0", b"3.0").replace(b"5.0", b"4.0") + b"""# TYPE b gauge
b 1.0
"""


def test_figures_of_processes_are_summed() -> None:
    """But the earliest start counts, and what all see alike is not counted twice."""
    assert merged([ONE, TWO]).decode().splitlines() == [
        "# HELP a_total Things", "# TYPE a_total counter", 'a_total{team="x y"} 5.0', "# TYPE a_created gauge",
        'a_created{team="x y"} 4.0', "# TYPE t histogram", 't_bucket{le="1.0"} 2.0', "t_count 2.0",
        "# TYPE tollway_policy_problems gauge", "tollway_policy_problems 1.0", "# TYPE b gauge", "b 1.0",
    ]  # fmt: skip
    assert merged([ONE]) == ONE
    assert merged([]) == b""


def test_what_all_workers_see_alike_is_not_summed() -> None:
    """An edited settings file is one edited file, however many workers tell of it."""
    assert b"tollway_settings_changed 1" in merged([b"tollway_settings_changed 1.0\n"] * 3)
