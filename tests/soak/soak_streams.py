"""Prompts on one stream and steps on another, as engines overlap them; on a CPU one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Streams:
    def __init__(self, device: str) -> None:
        self.streams = [torch.cuda.Stream() for _ in range(2)] if device == "cuda" else []

    @contextmanager
    def both(self) -> Iterator[None]:
        """Both streams start after what is launched already, and what follows waits for both."""
        for stream in self.streams:
            stream.wait_stream(torch.cuda.current_stream())
        yield
        for stream in self.streams:
            torch.cuda.current_stream().wait_stream(stream)

    @contextmanager
    def on(self, which: int) -> Iterator[None]:
        if not self.streams:
            yield
            return
        with torch.cuda.stream(self.streams[which]):
            yield
