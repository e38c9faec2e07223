"""A scripted engine that speaks vLLM 0.32's API, for faults, load and speed; the main path is tested on real engines.

`async with StandIn(scripts=[Script(text="Hi.")]) as engine:` serves on `engine.base_url`; `python -m tests.standin`
is the same as a process of its own. `test_contract.py` holds its shapes against the real engine.
"""

from tests.standin.faults import GARBAGE, WRONG_SHAPE, Faults
from tests.standin.model import Call, Model, Script
from tests.standin.server import Received, StandIn
from tests.standin.tokens import Tokenizer

__all__ = ["GARBAGE", "WRONG_SHAPE", "Call", "Faults", "Model", "Received", "Script", "StandIn", "Tokenizer"]
