"""One write where two would follow each other: each is a system call, a packet, and a reading at the other end."""

import asyncio

_COPIED = 64 * 1024  # bytes; to copy more than this costs more than a second write
_STATUS_LINE = b"HTTP/1.1 "


def joined(transport: asyncio.WriteTransport, head: bytes, body: bytes) -> None:
    """Writes both."""
    if len(body) <= _COPIED:
        transport.write(head + body)
    else:
        transport.write(head)
        transport.write(body)


class HeadKept:
    """A server's transport that keeps an answer's head until its body follows, at most until the loop's next turn.

    What looks like a head within a body is kept no longer.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop, self._head = transport, loop, b""
        self.is_closing = transport.is_closing
        self.get_extra_info = transport.get_extra_info
        self.pause_reading, self.resume_reading = transport.pause_reading, transport.resume_reading

    def write(self, data: bytes) -> None:
        """Writes, or keeps what a head begins."""
        head, self._head = self._head, b""
        if head:
            joined(self._transport, head, data)
        elif data.startswith(_STATUS_LINE):
            self._head = data
            self._loop.call_soon(self._flush)
        else:
            self._transport.write(data)

    def _flush(self) -> None:
        head, self._head = self._head, b""
        if head and not self._transport.is_closing():
            self._transport.write(head)

    def close(self) -> None:
        """Ends the connection, once everything has been written."""
        self._flush()
        self._transport.close()
