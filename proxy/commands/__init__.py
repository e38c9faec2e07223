"""Commands that talk to a proxy that runs, by its control port, and those that read the files which it keeps."""

from proxy.commands import approvals, audit, erasing, files, mode

__all__ = ["approvals", "audit", "erasing", "files", "mode"]
