"""The reader: what it reads is right, and what is damaged is named."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference.files import BadFile, BadValue, MissingKey, NotGGUF, Truncated
from inference.gguf import GGUF, read_gguf
from tests.inference.tiny import gguf_bytes

_RANDOM = np.random.default_rng(3)


def _halves(*values: float) -> bytes:
    return np.array(values, np.float16).tobytes()


_Q = _RANDOM.integers(0, 16, 32)
_PACKED = bytes((_Q[:16] | (_Q[16:] << 4)).astype(np.uint8))
_Q8 = _RANDOM.integers(-128, 128, 32).astype(np.int8)
WHOLE = gguf_bytes(
    {
        "general.architecture": (8, "llama"),
        "a.list": (9, (5, [1, -2])),
        "a.words": (9, (8, ["x", "é"])),
        "a.flag": (7, True),
    },
    {"m": ((1, 32), 3, _halves(0.5, -1.25) + _PACKED), "v": ((4,), 0, np.arange(4, dtype=np.float32).tobytes())},
)


@pytest.mark.parametrize(
    ("kind", "raw", "want"),
    [
        pytest.param(2, _halves(0.5) + _PACKED, 0.5 * (_Q - 8), id="Q4_0"),
        pytest.param(3, _halves(0.5, -1.25) + _PACKED, 0.5 * _Q - 1.25, id="Q4_1"),
        pytest.param(8, _halves(0.25) + _Q8.tobytes(), 0.25 * _Q8, id="Q8_0"),
        pytest.param(1, _halves(*range(32)), np.arange(32), id="F16"),
        pytest.param(0, np.arange(32, dtype=np.float32).tobytes(), np.arange(32), id="F32"),
        pytest.param(
            30,
            (np.arange(32, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes(),
            np.arange(32),
            id="BF16",
        ),
    ],
)
def test_every_kind_is_dequantized_by_its_formula(tmp_path: Path, kind: int, raw: bytes, want: np.ndarray) -> None:
    """The weights are what the block layout says, exactly."""
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_bytes({}, {"w": ((1, 32), kind, raw)}))
    assert np.array_equal(read_gguf(path).dequantize("w"), want.astype(np.float32)[None])


def test_metadata_keeps_its_types(tmp_path: Path) -> None:
    """Strings, lists and flags come back as they were written."""
    path = tmp_path / "x.gguf"
    path.write_bytes(WHOLE)
    file = read_gguf(path)
    assert file.meta == {"general.architecture": "llama", "a.list": [1, -2], "a.words": ["x", "é"], "a.flag": True}
    assert file.info("m").shape == (1, 32)
    with pytest.raises(MissingKey, match="nothing"):
        file.info("nothing")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, len(WHOLE) - 1))
def test_a_cut_file_is_named(tmp_path: Path, size: int) -> None:
    """Wherever the file ends early, the error says so."""
    path = tmp_path / "cut.gguf"
    path.write_bytes(WHOLE[:size])
    with pytest.raises((NotGGUF, Truncated)):
        read_gguf(path)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=8))
def test_a_lying_file_is_read_or_named(tmp_path: Path, at: int, lie: bytes) -> None:
    """Any bytes anywhere give a file whose tensors are numbers, or a BadFile; nothing else."""
    path = tmp_path / "lie.gguf"
    path.write_bytes((WHOLE[:at] + lie + WHOLE[at + len(lie) :])[: len(WHOLE)])
    try:
        file = read_gguf(path)
        for name in file.tensors:
            assert np.isfinite(file.dequantize(name)).all()
            file.quantized(name)
    except BadFile:
        return


@pytest.mark.parametrize(
    ("data", "error"),
    [
        pytest.param(b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), Truncated, id="tensors without end"),
        pytest.param(b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), Truncated, id="keys without end"),
        pytest.param(b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 62) + b"k" * 40, Truncated, id="a key without end"),
        pytest.param(b"GGUF" + struct.pack("<IQQ", 1, 0, 0), NotGGUF, id="version 1"),
        pytest.param(b"PK\3\4" + bytes(40), NotGGUF, id="another format"),
        pytest.param(gguf_bytes({}, {"w": ((1, 31), 3, bytes(20))}), BadValue, id="half a block"),
        pytest.param(gguf_bytes({}, {"w": ((1, 32), 99, bytes(20))}), BadValue, id="unknown kind"),
        pytest.param(gguf_bytes({"general.alignment": (4, 3)}, {}), BadValue, id="odd alignment"),
        pytest.param(gguf_bytes({"k": (9, (9, []))}, {}), None, id="an empty list of lists is harmless"),
    ],
)
def test_lies_about_sizes_cost_nothing(tmp_path: Path, data: bytes, error: type[BadFile] | None) -> None:
    """Counts are bounded by the file before anything is allocated."""
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    if error is None:
        assert isinstance(read_gguf(path), GGUF)
        return
    with pytest.raises(error):
        read_gguf(path)


def test_the_real_file(model_file: GGUF) -> None:
    """The bundled model has the tensors we know, and raw blocks say the same as the dequantizer."""
    kinds = [info.kind for info in model_file.tensors.values()]
    assert (kinds.count("Q4_1"), kinds.count("Q8_0"), kinds.count("F32")) == (210, 1, 61)
    parts = model_file.quantized("blk.3.ffn_down.weight")
    whole = parts.q * np.repeat(parts.d, 32, 1) + np.repeat(parts.m, 32, 1)
    assert np.array_equal(whole.astype(np.float32), model_file.dequantize("blk.3.ffn_down.weight"))
