"""Watches a proxy in a process of its own: Python runs this first where it finds it (see tests/watching.py)."""

import os
from pathlib import Path

from tests.watching import FOLDER, WATCH, install

WATCH.folder = Path(os.environ[FOLDER])
install(WATCH)
