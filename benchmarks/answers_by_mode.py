"""Whether a form costs right answers: demo-chat's held-out questions, by how the answer is asked for.

    python benchmarks/answers_by_mode.py [--version 1] [--questions 300] [--seed 1] [--wrong 3]

Questions for JSON are asked free, as `json_object`, and by a JSON Schema of the expected members: closed,
as most clients send it (without `additionalProperties`), and without spaces. Questions that need a tool are
asked with `tool_choice` auto, required, and naming the tool. Greedy, float32, through a replica in this
process. An answer is right when its JSON, or its call, is the expected one and it ends by itself. Prints a
Markdown table.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable
from typing import Any

from recipes.demo_chat import knowledge, tool_use
from recipes.demo_chat.dialogue import Exchange, Talk, Tool
from recipes.demo_chat.words import Pool
from serve_app.config import EngineConfig, ModelConfig
from serve_app.json_schema import COMPACT
from serve_app.replica.server import ModelServer
from serve_app.types import (
    FinishReason,
    GenerateRequest,
    Grammar,
    GrammarKind,
    Prompt,
    SamplingParams,
    ToolChoice,
    ToolMode,
)
from tests.support.sink import Sink

TYPES = {str: "string", int: "integer"}
TOGETHER = 32
Asked = tuple[Exchange, list[Tool]]
Modes = dict[str, Callable[[Exchange], dict[str, Any]]]  # name -> the fields of a request


def ended(answer: Sink) -> bool:
    return answer.finish() in (FinishReason.EOS, FinishReason.TOOL_CALLS)


def is_right(answer: Sink, exchange: Exchange) -> bool:
    """Whether it is the expected answer, and ended by itself."""
    try:
        if exchange.call is None:
            return ended(answer) and json.loads(answer.text()) == json.loads(exchange.answer)
        called = [(name, json.loads(arguments)) for name, arguments in answer.calls]
    except ValueError:
        return False
    return ended(answer) and called == [(exchange.call.name, exchange.call.arguments)]


def schema(exchange: Exchange, *, closed: bool, space: str | None = None) -> dict[str, Any]:
    """The field of a request for the members of the right answer."""
    members = json.loads(exchange.answer)
    value: dict[str, Any] = {
        "type": "object",
        "properties": {name: {"type": TYPES[type(member)]} for name, member in members.items()},
        "required": list(members),
    }
    if closed:
        value["additionalProperties"] = False
    return {"grammar": Grammar(kind=GrammarKind.SCHEMA, text=json.dumps(value), space=space)}


def named(exchange: Exchange) -> dict[str, Any]:
    name = None if exchange.call is None else exchange.call.name
    return {"tool_choice": ToolChoice(mode=ToolMode.NAMED, name=name)}


JSON_MODES: Modes = {
    "JSON: free": lambda _: {},
    "JSON: `json_object`": lambda _: {"grammar": Grammar(kind=GrammarKind.JSON)},
    "JSON: `json_schema`, closed": lambda exchange: schema(exchange, closed=True),
    "JSON: `json_schema`, as clients send it": lambda exchange: schema(exchange, closed=False),
    "JSON: `json_schema`, compact": lambda exchange: schema(exchange, closed=True, space=COMPACT),
}
TOOL_MODES: Modes = {
    "tools: `auto`": lambda _: {},
    "tools: `required`": lambda _: {"tool_choice": ToolChoice(mode=ToolMode.REQUIRED)},
    "tools: named": named,
}


async def ask(
    server: ModelServer, id: str, asked: Asked, fields: dict[str, Any], turn: asyncio.Semaphore
) -> Sink:
    exchange, tools = asked
    offered = tuple({"type": "function", "function": tool.get("function", tool)} for tool in tools)
    prompt = Prompt(messages=({"role": "user", "content": exchange.question},), tools=offered)
    answer = Sink()
    sampling = SamplingParams(temperature=0.0, max_tokens=200)
    request = GenerateRequest(id=id, model="demo-chat", prompt=prompt, sampling=sampling, **fields)
    async with turn:
        await server.generate(request, answer)
    return answer


async def measure(
    server: ModelServer,
    modes: dict[str, Callable[[Exchange], dict[str, Any]]],
    asked: list[Asked],
    wrong: int,
) -> list[str]:
    """A row of the table for each mode."""
    rows, turn = [], asyncio.Semaphore(TOGETHER)
    for mode, fields in modes.items():
        answers = await asyncio.gather(
            *(ask(server, f"{mode} {i}", each, fields(each[0]), turn) for i, each in enumerate(asked))
        )
        judged = [
            (exchange, answer, is_right(answer, exchange))
            for (exchange, _), answer in zip(asked, answers, strict=True)
        ]
        for exchange, answer, _ in [each for each in judged if not each[2]][:wrong]:
            print(f"{mode}: {exchange.question!r} -> {answer.text() or answer.calls!r}")
        right, at_end = sum(right for _, _, right in judged), sum(map(ended, answers))
        rows.append(f"| {mode} | {len(asked)} | {right / len(asked):.1%} | {at_end / len(asked):.1%} |")
    return rows


def questions(seed: int, count: int, version: int) -> tuple[list[Asked], list[Asked]]:
    """Held-out questions for JSON, and for a tool."""
    pool, talk = Pool(f"modes {seed}", held=True), Talk(version)
    plain: list[Asked] = [(knowledge.as_json(pool, talk), []) for _ in range(count)]
    called: list[Asked] = []
    while len(called) < count:
        talk.toolbox = tool_use.toolbox(pool, pool.rng.sample(list(tool_use.FAMILIES), pool.number(1, 3)))
        exchange = tool_use.use_tool(pool, talk)
        if exchange.call is not None:
            called.append((exchange, [use.tool for use in talk.toolbox]))
    return plain, called


async def run(options: argparse.Namespace) -> None:
    config = ModelConfig(
        name="demo-chat",
        version=str(options.version),
        dtype="float32",
        engine=EngineConfig(max_sequences=TOGETHER, num_blocks=2048, block_size=16),
    )
    plain, called = questions(options.seed, options.questions, options.version)
    server = await ModelServer.start(config, lambda _: None)
    rows = [*await measure(server, JSON_MODES, plain, options.wrong)]
    rows += await measure(server, TOOL_MODES, called, options.wrong)
    await server.stop()
    print("\n".join(["| asked for | questions | right | ended |", "|---|---:|---:|---:|", *rows]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", type=int, choices=(1, 2), default=1, help="of demo-chat")
    parser.add_argument("--questions", type=int, default=300, help="of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--wrong", type=int, default=0, help="wrong answers to show of each mode")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
