"""What vLLM refuses, in its words: request bodies, before anything is generated."""

import json
import math
from dataclasses import dataclass
from typing import Any

MAX_LOGPROBS = 20


@dataclass
class RefusedError(Exception):
    """A request that is answered with an error body."""

    status: int
    message: str
    type: str = "BadRequestError"
    param: str | None = None

    def body(self) -> dict[str, Any]:
        """vLLM's error body; the framework's own where the type is empty."""
        if not self.type:
            return {"detail": self.message}
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.status}}


def bad(message: str, param: str | None = None, value: Any = None) -> RefusedError:
    """A 400 of vLLM's own checks; `value` is what the message shows of the parameter."""
    shown = f", value={value}" if value is not None else ""
    return RefusedError(400, f"{message} (parameter={param}{shown})" if param else message, param=param)


def invalid(kind: str, where: str, message: str, shown: Any, context: str = "") -> RefusedError:
    """A 400 of the schema (pydantic's, as vLLM words it)."""
    if isinstance(shown, dict | list):
        shown = f"<{type(shown).__name__} of {len(shown)} items>"
    elif not isinstance(shown, str):
        shown = str(shown)
    entry = f"{{'type': '{kind}', 'loc': '{where}', 'msg': '{message}', 'input': '{shown}'{context}}}"
    return RefusedError(400, f"1 validation error:\n  {entry}", "Bad Request", where)


def read_body(raw: bytes, content_type: str) -> dict[str, Any]:
    """The request's JSON object.

    Raises:
        RefusedError: it is none.
    """
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise RefusedError(400, "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
                      "Bad Request")  # fmt: skip
    if not raw:
        raise invalid("missing", "body", "Field required", None)
    try:
        value = json.loads(raw)
    except json.JSONDecodeError as error:
        context = f", 'ctx': {{'error': '{error.msg}'}}"
        raise invalid("json_invalid", f"body.{error.pos}", "JSON decode error", {}, context) from None
    except UnicodeDecodeError:
        raise RefusedError(400, "There was an error parsing the body", "") from None
    if not isinstance(value, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        raise invalid("model_attributes_type", "body", message, value)
    return value


def integer(body: dict[str, Any], name: str) -> int | None:
    """An integer field as the server reads it ("3" is 3), None where it is unset."""
    value = body.get(name)
    if value is None or type(value) is int:
        return value
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            message = "Input should be a valid integer, unable to parse string as an integer"
            raise invalid("int_parsing", f"body.{name}", message, value) from None
    if isinstance(value, float):
        if value.is_integer():
            return int(value)
        message = "Input should be a valid integer, got a number with a fractional part"
        raise invalid("int_from_float", f"body.{name}", message, value)
    raise invalid("int_type", f"body.{name}", "Input should be a valid integer", value)


def model_known(body: dict[str, Any], model: str) -> None:
    """Refuses another model's name; none at all is this one's."""
    asked = body.get("model")
    if asked is not None and asked != model:
        message = f"The model `{asked}` does not exist. Valid aliases: {model}."
        raise RefusedError(404, message, "NotFoundError", "model")


def chat(body: dict[str, Any]) -> None:
    """Refuses what the chat route refuses by its schema and by its tools."""
    if "messages" not in body:
        raise invalid("missing", "body.messages", "Field required", body)
    if not isinstance(body["messages"], list):
        raise invalid("list_type", "body.messages", "Input should be a valid list", body["messages"])
    _streaming(body)
    _prompt_logprobs_stream(body)
    if body.get("top_logprobs") is not None and not body.get("logprobs"):
        raise bad("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
    _tools(body)


def _tools(body: dict[str, Any]) -> None:
    tools, choice = body.get("tools"), body.get("tool_choice")
    if tools == []:
        raise bad("`tools` must not be an empty array. Either provide at least one tool or omit the field entirely.",
                  "tools")  # fmt: skip
    if choice is None or (choice == "none" and not tools):
        return
    if not tools:
        raise bad("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if isinstance(choice, dict):
        named = (choice.get("function") or {}).get("name")
        if all((tool.get("function") or {}).get("name") != named for tool in tools):
            raise bad("The tool specified in `tool_choice` does not match any of the specified `tools`", "tool_choice")
    elif choice not in {"none", "auto", "required"}:
        message = f'Invalid value for `tool_choice`: {choice}! Only named tools, "none", "auto" or "required" are'
        raise bad(f"{message} supported.", "tool_choice")


def completions(body: dict[str, Any]) -> None:
    """Refuses what the completions route refuses by its schema."""
    if body.get("prompt") is None or body["prompt"] == "":
        raise bad("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if body["prompt"] == []:
        raise bad("You must pass at least one prompt")
    _streaming(body)
    _prompt_logprobs_stream(body)
    if (k := integer(body, "logprobs")) is not None and k < -1:
        raise bad("`logprobs` must be a positive value or -1.", "logprobs", k)


def _streaming(body: dict[str, Any]) -> None:
    if isinstance(stream := body.get("stream"), str) and stream.lower() not in {"true", "false", "1", "0"}:
        message = "Input should be a valid boolean, unable to interpret input"
        raise invalid("bool_parsing", "body.stream", message, stream)
    _stop(body)
    if body.get("stream_options") and not stream:
        raise bad("Stream options can only be defined when `stream=True`.", "stream_options")


def _stop(body: dict[str, Any]) -> None:
    stop = body.get("stop")
    if isinstance(stop, list) and len(stop) > 4:
        shown = f"'input': '<list of {len(stop)} items>'"
        context = f"'ctx': {{'field_type': 'List', 'max_length': 4, 'actual_length': {len(stop)}}}"
        wrong = "{'type': 'string_type', 'loc': 'body.stop', 'msg': 'Input should be a valid string', "
        many = f"List should have at most 4 items after validation, not {len(stop)}"
        long = f"{{'type': 'too_long', 'loc': 'body.stop', 'msg': '{many}', {shown}, {context}}}"
        message = f"2 validation errors:\n  {wrong}{shown}}}\n  {long}"
        raise RefusedError(400, message, "Bad Request", "body.stop")


def _prompt_logprobs_stream(body: dict[str, Any]) -> None:
    if body.get("prompt_logprobs") is not None and body.get("stream"):
        raise bad("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs")


def sampling(body: dict[str, Any], *, logprobs: int | None, vocabulary: int) -> None:
    """Refuses impossible sampling parameters, in the order in which the engine looks at them."""
    n, temperature = integer(body, "n"), body.get("temperature")
    if n is not None and n < 1:
        raise bad(f"n must be at least 1, got {n}.")
    if isinstance(temperature, float) and not math.isfinite(temperature):
        raise bad(f"temperature must be a finite number, got {temperature}.", "temperature", temperature)
    if isinstance(temperature, int | float) and temperature < 0:
        raise bad(f"temperature must be non-negative, got {float(temperature)}.", "temperature", float(temperature))
    for name in ("max_completion_tokens", "max_tokens"):
        if (limit := integer(body, name)) is not None:
            if limit < 1 and not (limit == 0 and body.get("echo")):
                raise bad(f"max_tokens must be at least 1, got {limit}.", "max_tokens", limit)
            break
    if n is not None and n > 1 and temperature == 0:
        raise bad(f"n must be 1 when using greedy sampling, got {n}.")
    _at_most(logprobs, "sample", "logprobs")
    _at_most(integer(body, "prompt_logprobs"), "prompt", "prompt_logprobs")
    _bias(body.get("logit_bias") or {}, vocabulary)


def _at_most(k: int | None, kind: str, name: str) -> None:
    if k is not None and k > MAX_LOGPROBS:
        message = f"Requested {kind} logprobs of {k}, which is greater than max allowed: {MAX_LOGPROBS}"
        raise bad(message, name, k)


def _bias(bias: dict[str, Any], vocabulary: int) -> None:
    if wrong := [key for key in bias if not key.lstrip("-").isdecimal()]:
        message = f"logit_bias contains key(s) that cannot be converted to integer token IDs: {wrong}"
        raise bad(message, "logit_bias", wrong)
    if beyond := [int(key) for key in bias if not 0 <= int(key) < vocabulary]:
        message = f"token_id(s) {beyond} in logit_bias contain out-of-vocab token ids. Vocabulary size: {vocabulary}"
        raise bad(message, "logit_bias", beyond)


def whole_context(body: dict[str, Any], longest: int) -> None:
    """Refuses a limit above all that the engine can hold; one above what is left beside the prompt is cut down."""
    for name in ("max_completion_tokens", "max_tokens"):
        if (limit := integer(body, name)) is not None:
            if limit > longest:
                message = f"{name}={limit} cannot be greater than max_model_len={longest}. "
                raise bad(message + "Please request fewer output tokens.", name, limit)
            break


def context(count: int, longest: int, *, given_on_chat: bool = False) -> None:
    """Refuses a prompt that leaves no room; ids given on the chat route are counted elsewhere, in other words."""
    if count == longest:
        raise bad("max_tokens must be at least 1, got 0.", "max_tokens", 0)
    if count < longest:
        return
    if given_on_chat:
        raise bad(f"Input length ({count}) exceeds model's maximum context length ({longest}).")
    message = (
        f"This model's maximum context length is {longest} tokens. However, your prompt contains at least "
        f"{longest + 1} input tokens, which exceeds this limit even without any output tokens. "
        "Please reduce the length of the input prompt."
    )
    raise bad(message, "input_tokens", longest + 1)


def given_ids(body: dict[str, Any]) -> list[int] | None:
    """`kv_transfer_params.prompt_token_ids`, None where they are not given."""
    params = body.get("kv_transfer_params")
    ids = params.get("prompt_token_ids") if isinstance(params, dict) else None
    if ids is None:
        return None
    name = "kv_transfer_params.prompt_token_ids"
    if not isinstance(ids, list) or not ids or not all(type(i) is int and i >= 0 for i in ids):
        raise bad("`kv_transfer_params['prompt_token_ids']` must be a non-empty list of non-negative integers.", name)
    return ids
