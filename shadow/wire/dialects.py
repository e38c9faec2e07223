"""What is written in any dialect, in the words of all: requests as chat requests, answers as answers. Pure."""

from typing import Any

from shadow.exchange import Answer, Dialect, Request
from shadow.wire import answers, messages, messages_requests, responses, responses_answer

PATHS = {
    Dialect.CHAT: "/v1/chat/completions",
    Dialect.COMPLETIONS: "/v1/completions",
    Dialect.RESPONSES: "/v1/responses",
    Dialect.MESSAGES: "/v1/messages",
}
"""Where each dialect is spoken, below a server's root."""

_TOLD = messages_requests.BUILT_IN | responses.BUILT_IN


def request_of(dialect: Dialect, sent: dict[str, Any]) -> Request:
    """A request from the JSON object that the client sent."""
    match dialect:
        case Dialect.MESSAGES:
            return Request(dialect, messages_requests.as_chat(sent), sent)
        case Dialect.RESPONSES:
            return Request(dialect, responses.as_chat(sent), sent)
    return Request(dialect, sent)


def read(dialect: Dialect, body: bytes, *, stream: bool) -> Answer:
    """An answer's complete bytes: server-sent events where `stream`, else one JSON object. Never raises."""
    match dialect:
        case Dialect.MESSAGES:
            return messages.read(body, stream=stream)
        case Dialect.RESPONSES:
            return responses_answer.read(body, stream=stream)
    return answers.read(dialect, body, stream=stream)


def built_in(request: Request) -> list[str]:
    """What of a request lets actions happen that nobody can hold back, in short words: a policy may name them.

    Some are the client's own; see `told`.
    """
    match request.dialect:
        case Dialect.MESSAGES:
            return messages_requests.built_in(request.sent or {})
        case Dialect.RESPONSES:
            return responses.built_in(request.sent or {})
    return []


def told(built_in: str) -> str:
    """A word of `built_in` as it may stand in a log or a metric: one of a fixed list, whatever the client wrote."""
    return built_in if built_in in _TOLD else responses.UNKNOWN


def replayed(request: Request, model: str, *, room: int) -> dict[str, Any]:
    """A request of a dialect without token ids as a reference gets it: allowed fields only, greedy, whole.

    Where the client set no limit, there is `room` for so many tokens.
    """
    sent = request.sent or {}
    if request.dialect is Dialect.MESSAGES:
        body, limit = messages_requests.replayed(sent, model), "max_tokens"
    else:
        body, limit = responses.replayed(sent, model), "max_output_tokens"
    return body if type(body.get(limit)) is int else body | {limit: room}
