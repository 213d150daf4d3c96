"""Segments of Kimi Delta Attention's prefill on the GPU, in other processes with numbers of them, by GDN_KDA_SEGMENTS; and all
other tests of its kernels with segments."""

from pathlib import Path

import pytest
from kda_segments_on_device import *  # noqa: F403
from kda_segments_on_device import CHOSEN
from other_kernels import check_with


@pytest.mark.skipif(CHOSEN != "auto", reason="this is the child")
def test_all_tests_pass_with_segments_of_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDN_KDA_WINDOW", "7")
    check_with("3", __file__, "GDN_KDA_SEGMENTS")


@pytest.mark.skipif(CHOSEN != "auto", reason="this is the child")
@pytest.mark.parametrize("file", ["test_kda_segments.py", "test_kda_prefill.py", "test_kda_chunks.py"])
@pytest.mark.parametrize("segments", ["3", "5"])
def test_all_tests_pass_with_segments(segments: str, file: str) -> None:
    check_with(segments, str(Path(__file__).with_name(file)), "GDN_KDA_SEGMENTS")
