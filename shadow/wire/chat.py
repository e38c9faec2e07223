"""Chat completions: how one choice of a chunk, or of a whole body, is read."""

from typing import Any

from shadow.wire.assembly import ChoiceAssembler, Token, number_of, token_id

_FUNCTION_CALL = -1  # the index under which the API's older `function_call` is kept


def read_chunk(choice: ChoiceAssembler, raw: dict[str, Any], chunk: dict[str, Any]) -> None:
    """Reads one entry of a stream chunk's `choices`."""
    _read(choice, raw, chunk, raw.get("delta"), whole=False)


def read_message(choice: ChoiceAssembler, raw: dict[str, Any], body: dict[str, Any]) -> None:
    """Reads one entry of a whole answer's `choices`."""
    _read(choice, raw, body, raw.get("message"), whole=True)


def _read(choice: ChoiceAssembler, raw: dict[str, Any], around: dict[str, Any], message: Any, *, whole: bool) -> None:
    choice.prompt(around.get("prompt_token_ids"))
    if isinstance(message, dict):
        choice.text(message.get("content"), message.get("reasoning") or message.get("reasoning_content"))
        choice.calls(message.get("tool_calls"), whole=whole)
        if isinstance(message.get("function_call"), dict):
            choice.calls([{"function": message["function_call"]}], index=_FUNCTION_CALL)
    choice.tokens(raw.get("token_ids"), logprob_entries(raw.get("logprobs")))
    choice.finish(raw.get("finish_reason"), raw.get("stop_reason"))


def logprob_entries(logprobs: Any) -> list[Token]:
    """`logprobs.content` as tokens; empty where there is none."""
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    return [_entry(item) for item in content if isinstance(item, dict)] if isinstance(content, list) else []


def _entry(item: dict[str, Any]) -> Token:
    raw, top = item.get("bytes"), item.get("top_logprobs")
    candidates = [
        (token_id(candidate.get("token")), number_of(candidate.get("logprob")))
        for candidate in (top if isinstance(top, list) else ())
        if isinstance(candidate, dict)
    ]
    try:
        text = bytes(raw) if isinstance(raw, list) else None
    except (ValueError, TypeError):  # not bytes after all
        text = None
    return Token(token_id(item.get("token")), number_of(item.get("logprob")), text, candidates)
