"""A small OpenAI-compatible server with vLLM's extras, real enough for `HttpSource`, that can misbehave on request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

__all__ = ["Upstream"]

Mood = Literal[
    "well",
    "refuses n",
    "ignores n",
    "null content",
    "no prompt",
    "broken",
    "every other fails",
    "strange",
    "null choices",
    "reasons",
]


@dataclass
class Upstream:
    """State of the upstream; `app()` serves it.

    Words are tokens: a prompt of w words has w prompt tokens, and every candidate is `answer NUMBER`.
    """

    mood: Mood = "well"
    requests: list[dict[str, Any]] = field(default_factory=list)
    drawn: int = 0

    def app(self) -> FastAPI:
        """The application."""
        app = FastAPI()
        app.add_api_route("/v1/models", self.models, methods=["GET"])
        app.add_api_route("/v1/chat/completions", self.chat, methods=["POST"], response_model=None)
        return app

    async def models(self) -> dict[str, Any]:
        return {"object": "list", "data": []}

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        count = body.get("n", 1)
        if self.mood == "broken" or (self.mood == "every other fails" and len(self.requests) % 2 == 0):
            return JSONResponse({"error": {"message": "out of order"}}, status_code=500)
        if self.mood == "no prompt" or (self.mood == "refuses n" and count > 1):
            return JSONResponse({"error": {"message": "not taken"}}, status_code=400)
        if self.mood == "strange":
            return PlainTextResponse("<html>hello</html>")
        if self.mood == "ignores n":
            count = 1
        words = sum(len((message["content"] or "").split()) for message in body["messages"])
        choices = [self._choice(index, body) for index in range(count)]
        if self.mood == "null choices":
            choices = [None, {**choices[0], "message": None}, *({**c, "index": None} for c in choices[2:])]
        answer: dict[str, Any] = {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": choices,
            "usage": {
                "prompt_tokens": words,
                "completion_tokens": 2 * count,
                "total_tokens": words + 2 * count,
            },
        }
        if body.get("prompt_logprobs") is not None:
            answer["prompt_logprobs"] = [
                None,
                *({str(k): {"logprob": -float(k), "rank": 1, "decoded_token": "w"}} for k in range(1, words)),
            ]
        return JSONResponse(answer)

    def _choice(self, index: int, body: dict[str, Any]) -> dict[str, Any]:
        self.drawn += 1
        content: str | None = None if self.mood == "null content" else f"answer {self.drawn}"
        finish = "length" if body.get("max_tokens") == 2 else "stop"
        others = [
            {"token": f"other{k}", "logprob": -1.0 - k, "bytes": None} for k in range(body.get("top_logprobs") or 0)
        ]
        words = ["answer", f" {self.drawn}"]
        logs = [{"token": word, "logprob": -0.5, "bytes": None, "top_logprobs": others} for word in words]
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if self.mood == "reasons":
            # Every second one ends while it still reasons.
            message |= {"reasoning": "Let me think.", "content": None if self.drawn % 2 else content}
        if body.get("tools") and body.get("tool_choice") != "none":
            function = {"name": body["tools"][0]["function"]["name"], "arguments": f'{{"x": {self.drawn}}}'}
            message = {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": f"up-{self.drawn}", "type": "function", "function": function}],
            }
            finish = "tool_calls"
        return {
            "index": index,
            "finish_reason": finish,
            "message": message,
            "logprobs": {"content": logs, "refusal": None} if body.get("logprobs") else None,
        }
