"""Server-sent events out of a byte stream, as forgiving about line ends as browsers are."""

from __future__ import annotations

__all__ = ["EventReader"]


class EventReader:
    """Collects `data` lines; an empty line ends an event. LF, CRLF and a missing space are fine."""

    def __init__(self) -> None:
        self._buffer = b""
        self._data: list[bytes] = []

    def feed(self, content: bytes) -> list[bytes]:
        """Data of the events that these bytes complete."""
        self._buffer += content
        *lines, self._buffer = self._buffer.split(b"\n")
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
        return events

    @property
    def is_between_events(self) -> bool:
        """Whether nothing half is left."""
        return not self._buffer and not self._data
