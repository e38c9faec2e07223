"""The routes that do not generate: health's neighbours, tokenize, detokenize, render, derender, models, metrics."""

import time
from typing import Any

from tests.standin import chat, checks, wire
from tests.standin.asking import Served, known
from tests.standin.tokens import render

GET = frozenset({"/health", "/version", "/metrics", "/v1/models"})
POST = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/tokenize",
        "/detokenize",
        "/v1/chat/completions/render",
        "/v1/chat/completions/derender",
    }
)


class Plain:
    """Answers what does not generate. Without `scale_out`, render and derender are 403, as in vLLM."""

    def __init__(self, served: Served, *, scale_out: bool, prefix_cache: bool) -> None:
        self._served = served
        self._scale_out = scale_out
        self._prefix_cache = prefix_cache

    def metrics(self, running: int) -> str:
        """The Prometheus page, as far as this project reads it."""
        labels = f'{{engine="0",model_name="{self._served.name}"}}'
        caching = "True" if self._prefix_cache else "False"
        cache = f'block_size="32",cache_dtype="auto",enable_prefix_caching="{caching}",engine="0"'
        return (
            "# HELP vllm:num_requests_running Number of requests in model execution batches.\n"
            "# TYPE vllm:num_requests_running gauge\n"
            f"vllm:num_requests_running{labels} {float(running)}\n"
            "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n"
            "# TYPE vllm:cache_config_info gauge\n"
            f"vllm:cache_config_info{{{cache}}} 1.0\n"
        )

    def get(self, path: str) -> dict[str, Any]:
        """/version or /v1/models."""
        if path == "/version":
            return {"version": "0.32.0"}
        created, new_id = int(time.time()), self._served.ids.new()
        entry = {
            "id": self._served.name,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": f"/models/{self._served.name}",
            "parent": None,
            "max_model_len": self._served.max_model_len,
            "permission": [wire.permission(new_id, created)],
        }
        return {"object": "list", "data": [entry]}

    def post(self, path: str, raw: bytes, content_type: str) -> dict[str, Any]:
        """A route that takes a JSON object.

        Raises:
            RefusedError: it does not take this one.
        """
        if path.endswith("render") and not self._scale_out:
            message = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
            raise checks.RefusedError(403, message, "PermissionDeniedError")
        body = checks.read_body(raw, content_type)
        route = {"/tokenize": self._tokenize, "/detokenize": self._detokenize}.get(path)
        if route is None:
            route = self._derender if path.endswith("/derender") else self._render
        return route(body)

    def _tokenize(self, body: dict[str, Any]) -> dict[str, Any]:
        if "prompt" not in body and "messages" not in body:
            entries = [
                f"  {{'type': 'missing', 'loc': 'body.{name}', 'msg': 'Field required', "
                f"'input': '<dict of {len(body)} items>'}}"
                for name in ("prompt", "messages")
            ]
            message = "\n".join(["2 validation errors:", *entries])
            raise checks.RefusedError(400, message, "Bad Request", "body.prompt")
        checks.model_known(body, self._served.name)
        tokenizer = self._served.model.tokenizer
        text = body.get("prompt")
        if text is None:
            opens = body.get("add_generation_prompt") is not False
            text = render(body["messages"], body.get("tools"), opens=opens)
        ids = tokenizer.encode(text)
        strings = [tokenizer.decode([i]).replace(" ", "Ġ") for i in ids] if body.get("return_token_strs") else None
        return {
            "count": len(ids),
            "max_model_len": self._served.max_model_len,
            "tokens": ids,
            "token_strs": strings,
        }

    def _detokenize(self, body: dict[str, Any]) -> dict[str, Any]:
        if "tokens" not in body:
            raise checks.invalid("missing", "body.tokens", "Field required", body)
        if not isinstance(body["tokens"], list):
            raise checks.invalid("list_type", "body.tokens", "Input should be a valid list", body["tokens"])
        checks.model_known(body, self._served.name)
        known(self._served, body["tokens"])
        return {"prompt": self._served.model.tokenizer.decode(body["tokens"])}

    def _render(self, body: dict[str, Any]) -> dict[str, Any]:
        checks.chat(body)
        checks.model_known(body, self._served.name)
        ids = chat.prompt_ids(self._served, body)
        checks.context(len(ids), self._served.max_model_len)
        limit = checks.integer(body, "max_completion_tokens") or checks.integer(body, "max_tokens")
        sampling = {
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "temperature": float(body.get("temperature", 1.0)),
            **({} if body.get("temperature") == 0 else {"top_p": 1.0, "min_p": 0.0}),
            "stop": [],
            "stop_token_ids": [],
            "max_tokens": limit or self._served.max_model_len - len(ids),
            **({"skip_special_tokens": False} if body.get("tools") else {}),
            "output_kind": 2,
            "skip_clone": True,
            "bad_words": [],
            "skip_reading_prefix_cache": False,
        }
        head = {"request_id": f"chatcmpl-{self._served.ids.new()}", "token_ids": ids}
        nothing = dict.fromkeys(("token_offsets", "features", "content_parts"))
        unset = dict.fromkeys(("reasoning_ended", "reasoning_parser_kwargs", "return_token_ids"))
        way = {"output_mode": "tokens", "stream": False, "stream_options": None, "cache_salt": None, "priority": 0}
        last = dict.fromkeys(("kv_transfer_params", "ec_transfer_params"))
        more = {"sampling_params": sampling, "model": self._served.name}
        return head | nothing | more | unset | way | last

    def _derender(self, body: dict[str, Any]) -> dict[str, Any]:
        response = body.get("generate_response")
        if not isinstance(response, dict):
            raise checks.invalid("missing", "body.DerenderChatRequest.generate_response", "Field required", body)
        asked = body.get("chat_request") or {}
        choices, total = [], 0
        for given in response.get("choices", ()):
            ids = given["token_ids"]
            known(self._served, ids)
            total += len(ids)
            text = self._served.model.tokenizer.decode(ids, specials=False)
            said, _called = chat.read_message(self._served, asked, text)
            finish = given.get("finish_reason") or "stop"
            choices.append(wire.chat_choice(given["index"], said, None, finish, None, None))
        counted = wire.usage(body.get("prompt_tokens") or 0, total, *wire.USAGE_DETAILS)
        head = wire.Head(response["request_id"], int(time.time()), self._served.name)
        return wire.chat_body(head, choices, counted, None)
