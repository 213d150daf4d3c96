"""What GDN_INTEGRATIONS asks for: a library that is merely installed must not change a server."""

from __future__ import annotations

from .. import _C

PLUGINS = ("vllm", "sglang")  # those that engines load by themselves, by entry points


def requested(name: str) -> bool:
    """Whether GDN_INTEGRATIONS names this integration."""
    return name in _C.env()["integrations"].split(",")
