"""The integrations that GDN_INTEGRATIONS requests: a library that is merely installed must not change a server."""

from __future__ import annotations

import logging
from collections.abc import Callable

from .. import _C
from ..hosts.replaced import keeps_own_kernels

logger = logging.getLogger("gdn_cuda")
PLUGINS = ("vllm", "sglang")  # engines load these by entry points


def requested(name: str) -> bool:
    """Whether GDN_INTEGRATIONS names this integration. Raises RuntimeError where a GDN_ variable is malformed."""
    return name in _C.requested_integrations()


def install_if_requested(name: str, install: Callable[[], object]) -> None:
    """For entry points, which every process of an engine calls, requested or not. The engine starts even if this fails."""
    try:
        if not requested(name):
            return
    except RuntimeError as malformed:
        logger.warning("the plugin of gdn_cuda does nothing in %s: %s", name, malformed)
        return
    try:
        install()
    except Exception as error:
        keeps_own_kernels(name, error)
