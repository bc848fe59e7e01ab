"""Limits hold however long a value is."""
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects import limits
from gateway.dialects.limits import InvalidJson, check_shape, check_text


@given(st.binary(max_size=40) | st.text(max_size=20).map(lambda text: text.encode("utf-8", "surrogatepass")), st.integers(1, 9))
def test_text_is_checked_by_steps_as_if_whole(value: bytes, step: int) -> None:
    """Characters may cross the border between two steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "_TEXT_STEP_BYTES", step)
        try:
            value.decode()
        except UnicodeDecodeError:
            with pytest.raises(InvalidJson):
                check_text(value)
        else:
            check_text(value)


def test_strings_across_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_STEP_BYTES", 3)
    check_shape(b'["' + b"]" * 500 + b'\\"' + b"[{" * 70 + b'\\\\", 1]', 0)
    with pytest.raises(limits.TooDeep):
        check_shape(b"[" * 65 + b" " * 10 + b"]" * 65, 0)
