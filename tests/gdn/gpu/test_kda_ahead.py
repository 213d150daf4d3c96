"""Chunks of Kimi Delta Attention prepared beside the owners of states, on the GPU: in other processes, by GDN_KDA_AHEAD."""

from pathlib import Path

import pytest
from kda_ahead_on_device import *  # noqa: F403
from kda_ahead_on_device import FORCED, ahead, inputs
from devices import GPU
from other_kernels import check_with


@pytest.mark.skipif(FORCED != "auto", reason="this is the child")
@pytest.mark.parametrize("file", ["test_kda_ahead.py", "test_kda_prefill.py", "test_kda_chunks.py", "test_kda_segments.py"])
@pytest.mark.parametrize("ahead", ["1", "0"])
def test_all_tests_pass_with_and_without_it(ahead: str, file: str) -> None:
    if ahead == "0" and file == "test_kda_ahead.py":
        pytest.skip("its tests are of one launch")
    check_with(ahead, str(Path(__file__).with_name(file)), "GDN_KDA_AHEAD")
