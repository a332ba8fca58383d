"""The table written for Dynamo's mocker says what the performance model says."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from pdplugins.errors import ConfigError
from pdplugins.perf import npz
from pdplugins.perf.npz import export_npz
from pdplugins.perf.profile import read_profile
from pdplugins.perf.table import TableModel
from pdplugins.resources import data_dir


@pytest.fixture
def perf() -> TableModel:
    return TableModel(read_profile(data_dir("profiles") / "h100" / "llama-3.1-70b-fp8.json"))


@pytest.mark.parametrize(("prefill_tp", "decode_tp"), [(1, 2), (4, 1)])
def test_read_as_the_mocker_does_it_agrees_with_the_model(
    tmp_path: Path, perf: TableModel, prefill_tp: int, decode_tp: int
) -> None:
    path = tmp_path / "times"  # without .npz, which numpy would add
    export_npz(perf, path, prefill_tp, decode_tp)
    table = np.load(path)
    for tokens in (1, 40, 700, 3000, 8192, 100_000):
        written = np.interp(tokens, table["prefill_isl"], table["prefill_ttft_ms"])
        assert written == pytest.approx(1e3 * perf.prefill_s(tokens, prefill_tp), rel=0.02)
    kv_tokens, contexts = table["decode_active_kv_tokens"], table["decode_context_length"]
    for batch, context in ((1, 500), (20, 1000), (100, 1000), (200, 1100), (16, 30_000)):
        by_context = [np.interp(batch * context, kv_tokens, column) for column in table["decode_itl"].T]
        written = np.interp(context, contexts, by_context)
        assert written == pytest.approx(1e3 * perf.decode_step_s(batch, context, decode_tp), rel=0.08)


def test_no_time_falls_as_work_grows(tmp_path: Path, perf: TableModel) -> None:
    path = tmp_path / "times.npz"
    export_npz(perf, path, 1, 2)
    table = np.load(path)
    assert (np.diff(table["prefill_ttft_ms"]) >= 0).all()
    assert (np.diff(table["decode_itl"], axis=0) >= 0).all()
    assert (table["decode_itl"] > 0).all()


@pytest.mark.dynamo
def test_dynamo_knows_the_file_as_its_own_format(tmp_path: Path, perf: TableModel) -> None:
    from dynamo.mocker.utils.planner_profiler_perf_data_converter import is_mocker_format_npz  # noqa: PLC0415

    path = tmp_path / "times.npz"
    export_npz(perf, path, 1, 2)
    assert is_mocker_format_npz(path)


def test_an_empty_file_is_no_npz(tmp_path: Path) -> None:
    (tmp_path / "empty.npz").touch()
    with pytest.raises(ConfigError, match=r"empty.npz: it is no \.npz file"):
        npz._load(tmp_path / "empty.npz")


@pytest.mark.parametrize("bad", [b"\x07", b"\xff" * 40])
def test_a_damaged_npz_is_told_in_one_line(tmp_path: Path, bad: bytes) -> None:
    """The compressed data of the first array is changed, which zlib notices and not zip."""
    path = tmp_path / "bad.npz"
    np.savez_compressed(path, decode_itl=np.arange(1000.0))
    raw = path.read_bytes()
    with zipfile.ZipFile(path) as file:
        (part,) = file.infolist()
    begin = part.header_offset + 30 + int.from_bytes(raw[26:28], "little") + int.from_bytes(raw[28:30], "little")
    path.write_bytes(raw[:begin] + bad + raw[begin + len(bad) :])
    with pytest.raises(ConfigError, match=r"bad\.npz: it is no \.npz file"):
        npz.read_npz(path)
