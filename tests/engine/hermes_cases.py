"""What vLLM's own Hermes streaming makes of many texts: ``<engines' python> hermes_cases.py <model folder>``.

No engine runs. Token ids are handed to vLLM's real output processor (incremental detokenizer, logprobs, merging of
deltas), its results to the real chat serving code with the real Hermes parser, and what that sends is written down,
one JSON object per line:

    name           what the case is about, and how many tokens each delta merges
    text           what the model is taken to have said
    token_ids      the choice's ids, the end-of-turn token included where there is one
    token_bytes_hex  `logprobs.content[i].bytes` of each, as hex digits
    chunks         the streamed choices: "delta", and where set "token_ids", "finish_reason", "stop_reason"
    nonstream      content and tool calls of the same answer, not streamed
    marker_token   index of the first token that holds a byte of the first call's opening marker, from the tokens' raw
                   bytes; null if no call was streamed

Call ids are random in vLLM; here they are "call_<index>".
"""

import asyncio
import json
import logging
import sys
import types
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

# vLLM logs to standard output unless told otherwise; results go there.
logging.disable(logging.CRITICAL)

import numpy as np  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402
from transformers.convert_slow_tokenizer import bytes_to_unicode  # noqa: E402
from vllm.entrypoints.generate.base.protocol import RequestResponseMetadata  # noqa: E402
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest  # noqa: E402
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat  # noqa: E402
from vllm.outputs import RequestOutput  # noqa: E402
from vllm.parser import ParserManager  # noqa: E402
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason  # noqa: E402
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector  # noqa: E402
from vllm.v1.outputs import LogprobsLists  # noqa: E402

MARKER = b"<tool_call>"
CALL = '<tool_call>\n{"name": "run_command", "arguments": {"device": "edge-1", "command": "show arp"}}\n</tool_call>'
TIGHT = '<tool_call>{"name": "ping", "arguments": {"host": "10.0.0.1", "count": 3}}</tool_call>'
BARE = '<tool_call>\n{"name": "reboot", "arguments": {}}\n</tool_call>'
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("run_command", "ping", "reboot", "note")
]
ALL = 10_000
EOS = "<|im_end|>"


@dataclass(frozen=True)
class Case:
    """A text, or the token ids of one that the tokenizer would not make; tokens per delta; stop strings."""

    name: str
    text: str = ""
    ids: tuple[int, ...] = ()
    size: int = 1
    stop: tuple[str, ...] = ()
    ends: bool = True


TEXTS = {
    "call only": CALL,
    "call only, no line breaks": TIGHT,
    "call without arguments": BARE,
    "call never closed": CALL.removesuffix("\n</tool_call>"),
    "call cut in its arguments": CALL[:70],
    "call cut in its name": CALL[:28],
    "marker cut at the end": "Let me look.<tool_ca",
    "marker and nothing else": "Let me look. <tool_call>",
    "text, then a call": f"I will look it up.\n{CALL}",
    "text glued to the marker": f"Sure.{CALL}",
    "text glued, another mark": f"Sure!{TIGHT}",
    "text glued, a bracket": f"(see below){CALL}",
    "text glued, a quote": f'He said "go"{CALL}',
    "text glued, a letter": f"ok{CALL}",
    "text and a blank": f"Sure, one moment. {CALL}",
    "text ends in two line breaks": f"Sure.\n\n{CALL}",
    "text ends in blanks and tabs": f"Sure. \t  {CALL}",
    "line breaks only": f"\n\n{CALL}",
    "blanks only": f"   {CALL}",
    "blank space after the call": f"{CALL}\n\n  \n",
    "text after the call": f"First this.\n{CALL}\nThat was it.",
    "two calls": f"{CALL}\n{TIGHT}",
    "two calls, glued": f"Both.{TIGHT}{BARE}",
    "three calls with text before": f"Three things.\n{CALL}\n{TIGHT}\n{BARE}",
    "text between calls": f"One.\n{TIGHT}\nAnd two.\n{BARE}",
    "false start: less-than": f"a < b and c<d, so: {CALL}",
    "false start: less-than just before": f"if a <{CALL}",
    "false start: two less-thans": f"x <<{TIGHT}",
    "false start: tool": f"The <tool> tag and the <tool_box> tag.\n{CALL}",
    "false start: almost the marker": f"Not <tool_cal l> but\n{CALL}",
    "false start: marker without end": f"It begins with <tool_call, then\n{CALL}",
    "false start: closing tag": f"</tool_call>{CALL}",
    "false start: other markup": f"<p>Hello</p><br/>{CALL}",
    "two bytes a letter": f"Café, naïve, señor.\n{CALL}",
    "Chinese": f"我来查一下这个接口。{CALL}",
    "Japanese and Korean": f"確認します。확인합니다\n{CALL}",
    "emoji": f"On it 🚀{CALL}",
    "emoji, joined": f"Family 👩‍👩‍👧‍👦 and flag 🇩🇪 {CALL}",
    "emoji only": f"😀{TIGHT}",
    "combining marks": f"e\u0301 n\u0303 a\u030a{CALL}",
    "Arabic and Hebrew": f"حسنا שלום {CALL}",
    "rare script": f"𓀀𓂀 𐍈{CALL}",
    "replacement character": f"lost \ufffd here{CALL}",
    "zero-width blank": f"ok\u200b{CALL}",
    "emoji in the arguments": '<tool_call>\n{"name": "note", "arguments": {"text": "fertig ✅ é"}}\n</tool_call>',
    "quoted marker, no call": "Write `<tool_call>` before a call.",
    "quoted marker, then a call": f"Write `<tool_call>` before a call, like this:\n{CALL}",
    "quoted call, then a call": f'Say "{TIGHT}" or so.\n{CALL}',
    "marker in the arguments": '<tool_call>\n{"name": "note", "arguments": {"text": "<tool_call> x"}}\n</tool_call>',
    "arguments before the name": '<tool_call>\n{"arguments": {"host": "a"}, "name": "ping"}\n</tool_call>',
    "not JSON": "Hm. <tool_call>\nrun_command(device='edge-1')\n</tool_call>",
    "special tokens as text": f"<file_sep>left over<|endoftext|>{CALL}",
    "code": f"```python\nif x < 3:\n    print('<b>')\n```\n{CALL}",
    "JSON as text": f'{{"name": "ping", "arguments": {{}}}}\n{CALL}',
    "long text": "The interface has been flapping since this morning, and the counters rise. " * 12 + CALL,
    "no call": "The interface is up.",
    "no call, less-than at the end": "so a <",
    "no call, emoji": "Done 🎉",
    "nothing": "",
}
STOPS = {
    "stop string that does not come": (f"Sure.\n{CALL}", ("Observation:",)),
    "stop string, long": (f"Let me see 🚀 now.{CALL}", ("<END OF THE WHOLE CONVERSATION>",)),
    "stop string after the call": (f"Sure.\n{CALL}\nObservation: none", ("Observation:",)),
    "stop string in the call": (f"Sure.\n{CALL}", ("show arp",)),
    "stop string is the closing tag": (f"Sure.{CALL}", ("</tool_call>",)),
    "stop string before the call": (f"Sure. STOP {CALL}", ("STOP",)),
}


def cases(tokenizer: Any) -> Iterator[Case]:
    """Every text token by token and in one other size; all sizes for some; stop strings; ids that no text gives."""
    for number, (name, text) in enumerate(TEXTS.items()):
        yield Case(name, text)
        yield Case(name, text, size=(2, 3, 5, ALL)[number % 4])
    for name in ("text glued to the marker", "emoji, joined", "text between calls"):
        for size in sorted({2, 3, 5, ALL} - {(2, 3, 5, ALL)[list(TEXTS).index(name) % 4]}):
            yield Case(name, TEXTS[name], size=size)
    yield Case("cut off by length", TEXTS["text, then a call"], ends=False)
    for name, (text, stop) in STOPS.items():
        yield Case(name, text, stop=stop)
        yield Case(name, text, stop=stop, size=3)

    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    spelled = tuple(one for letter in f"Hi {CALL}" for one in ids(letter))
    half = ids("😀")[:1]
    for name, given in {
        "spelled in single letters": spelled,
        "half a character, then the marker": half + ids(TIGHT),
        "half a character, text, then a call": half + ids(f"and so on {TIGHT}"),
        "text, half a character, then the marker": ids("Look ") + half + ids(TIGHT),
        "ends in half a character": ids("Done ") + half,
    }.items():
        yield Case(name, ids=given)
        yield Case(name, ids=given, size=3)


class Simulation:
    """vLLM's path from a step's token ids to what a client receives, without an engine."""

    def __init__(self, model: str) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.byte_of = {letter: value for value, letter in bytes_to_unicode().items()}
        serving = OpenAIServingChat.__new__(OpenAIServingChat)
        vars(serving).update(
            parser_cls=ParserManager.get_parser(
                tool_parser_name="hermes", enable_auto_tools=True, tokenizer=self.tokenizer
            ),
            enable_auto_tools=True,
            model_config=types.SimpleNamespace(),
            response_role="assistant",
            request_logger=None,
            return_tokens_as_token_ids=False,
            default_chat_template_kwargs={},
            chat_template=None,
            chat_template_content_format="auto",
            system_fingerprint=None,
            _include_reasoning_tokens_details=False,
            enable_prompt_tokens_details=False,
            enable_force_include_usage=False,
            enable_log_outputs=False,
            enable_log_deltas=False,
            enable_per_request_metrics=False,
        )
        self.serving = serving
        turn = "<|im_start|>user\nIs it up?<|im_end|>\n<|im_start|>assistant\n"
        self.prompt = self.tokenizer.encode(turn, add_special_tokens=False)
        self.eos = self.tokenizer.convert_tokens_to_ids(EOS)

    def run(self, case: Case) -> dict[str, Any]:
        """One line of the result."""
        ids = list(case.ids or self.tokenizer.encode(case.text, add_special_tokens=False))
        chunks, token_ids, token_bytes = asyncio.run(self._streamed(case, ids))
        size = "all" if case.size == ALL else case.size
        called = any("tool_calls" in chunk["delta"] for chunk in chunks)
        return {
            "name": f"{case.name} [{size}]",
            "text": case.text or self.tokenizer.decode(ids),
            "token_ids": token_ids,
            "token_bytes_hex": token_bytes,
            "chunks": chunks,
            "nonstream": asyncio.run(self._whole(case, ids)),
            "marker_token": self._marker_token(token_ids) if called else None,
        }

    async def _streamed(self, case: Case, ids: list[int]) -> tuple[list[dict[str, Any]], list[int], list[str]]:
        request = self._request(case, stream=True)
        results = self._results(request, case, ids)
        about = RequestResponseMetadata(request_id="id")
        events = self.serving.chat_completion_stream_generator(request, results, "id", "m", [], self.tokenizer, about)
        chunks, token_ids, token_bytes = [], [], []
        async for event in events:
            payload = event.removeprefix("data: ").strip()
            if payload == "[DONE]":
                break
            chunk = json.loads(payload)
            # A failure in vLLM's generator is an event with an error, not an exception.
            (choice,) = chunk["choices"]
            logprobs = choice.pop("logprobs", None) or {"content": []}
            token_bytes += [bytes(token["bytes"]).hex() for token in logprobs["content"]]
            token_ids += choice.get("token_ids") or []
            choice.pop("index")
            chunks.append({key: value for key, value in choice.items() if value is not None})
        for chunk in chunks:
            for call in chunk["delta"].get("tool_calls", ()):
                if "id" in call:
                    call["id"] = f"call_{call['index']}"
        assert len(token_ids) == len(token_bytes), case
        return chunks, token_ids, token_bytes

    async def _whole(self, case: Case, ids: list[int]) -> dict[str, Any]:
        request = self._request(case, stream=False)
        parser = self.serving._make_parser(request, self.tokenizer, {})
        results = self._results(request, case, ids)
        about = RequestResponseMetadata(request_id="id")
        answer = await self.serving.chat_completion_full_generator(
            request, results, "id", "m", [], self.tokenizer, about, parser
        )
        message = answer.choices[0].message.model_dump(include={"content", "tool_calls"})
        calls = message.get("tool_calls") or []
        for index, call in enumerate(calls):
            call["id"] = f"call_{index}"
        return {"content": message["content"], "tool_calls": calls}

    def _request(self, case: Case, *, stream: bool) -> ChatCompletionRequest:
        request = ChatCompletionRequest(
            model="m",
            messages=[{"role": "user", "content": "Is it up?"}],
            tools=TOOLS,
            tool_choice="auto",
            stream=stream,
            logprobs=True,
            top_logprobs=1,
            return_token_ids=True,
            return_tokens_as_token_ids=True,
            stop=list(case.stop),
        )
        return self.serving._make_parser(request, self.tokenizer, {}).adjust_request(request)

    async def _results(
        self, request: ChatCompletionRequest, case: Case, ids: list[int]
    ) -> AsyncIterator[RequestOutput]:
        """What the engine client would yield: the output processor's results, `case.size` steps merged into one."""
        params = request.to_sampling_params(1000, {})
        collector = RequestOutputCollector(params.output_kind, "id")
        processor = OutputProcessor(self.tokenizer, log_stats=False)
        asked = EngineCoreRequest("id", self.prompt, None, params, None, 0.0, None, None, None, external_req_id="id")
        processor.add_request(asked, prompt=None, queue=collector)
        steps = [(one, None) for one in ids]
        if case.ends:
            steps.append((self.eos, FinishReason.STOP))
        else:
            steps[-1] = (ids[-1], FinishReason.LENGTH)
        for number, (token, finish) in enumerate(steps, start=1):
            logprobs = LogprobsLists(np.array([[token, token]]), np.array([[-0.5, -0.5]]), np.array([1]))
            processor.process_outputs([EngineCoreOutput("id", [token], logprobs, finish_reason=finish)])
            ended = not processor.has_request("id")
            if (number % case.size == 0 or ended) and (result := collector.get_nowait()) is not None:
                yield result
            if ended:
                return

    def _marker_token(self, token_ids: list[int]) -> int:
        raw = [self._raw(one) for one in token_ids]
        begin = b"".join(raw).index(MARKER)
        seen = 0
        for index, piece in enumerate(raw):
            seen += len(piece)
            if seen > begin:
                return index
        raise AssertionError(token_ids)

    def _raw(self, token: int) -> bytes:
        text = self.tokenizer.convert_ids_to_tokens(token)
        if token in self.tokenizer.added_tokens_decoder:
            return text.encode()
        return bytes(self.byte_of[letter] for letter in text)


def main(model: str) -> None:
    """Prints every case's line."""
    simulation = Simulation(model)
    for case in cases(simulation.tokenizer):
        print(json.dumps(simulation.run(case), ensure_ascii=False, separators=(",", ":")))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
