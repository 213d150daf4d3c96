"""Prefill of Kimi Delta Attention on the GPU; in other processes with several windows, by GDN_KDA_WINDOW."""

import pytest
from kda_prefill_on_device import *  # noqa: F403
from kda_prefill_on_device import CHOSEN_WINDOW
from other_kernels import check_with


@pytest.mark.skipif(CHOSEN_WINDOW != "auto", reason="this is the child")
@pytest.mark.parametrize("chunks", ["1", "3"])
def test_all_tests_of_this_file_pass_with_windows(chunks: str) -> None:
    check_with(chunks, __file__, "GDN_KDA_WINDOW")
