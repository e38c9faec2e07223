"""Is this tool call the same call, and is it allowed: pure values, no HTTP and no engine.

Public face: `ToolCall`, `ComparePolicy`, `parse_arguments`, `match_calls`, `Finding`, `Word`.
"""

from validators.calls import (
    Arguments,
    CallMatch,
    ComparePolicy,
    Difference,
    ToolCall,
    canonical,
    diff,
    match_calls,
    parse_arguments,
)
from validators.verdict import Finding, Word, worst

__all__ = [
    "Arguments",
    "CallMatch",
    "ComparePolicy",
    "Difference",
    "Finding",
    "ToolCall",
    "Word",
    "canonical",
    "diff",
    "match_calls",
    "parse_arguments",
    "worst",
]
