"""What a request means for the answers to it: markers that are seen, grammars, parsers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from serve_app.errors import UnsupportedField
from serve_app.json_schema import COMPACT, SPACE
from serve_app.text.answer.answer_format import AnswerFormat, AnswerReader
from serve_app.text.answer.output_text import OutputText
from serve_app.text.answer.parser import AnswerPart
from serve_app.text.tokens.tokenizer import Tokenizer
from serve_app.types import GenerateRequest, Grammar, GrammarKind, Prompt, ToolChoice, ToolMode
from tests.support.tiny_llama import make_tiny_llama

LLAMA3 = "{% for tool in tools %}{{ tool | tojson }}{% endfor %}<|python_tag|>"
MISTRAL = LLAMA3.replace("<|python_tag|>", "[TOOL_CALLS]")
SPECIAL = ["<|python_tag|>", "[TOOL_CALLS]", "<think>", "</think>"]
NAMED = ToolChoice(mode=ToolMode.NAMED, name="g")
SCHEMA = Grammar(kind=GrammarKind.SCHEMA, text='{"type": "array"}')
REGEX = Grammar(kind=GrammarKind.REGEX, text="a+")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer whose markers are special tokens."""
    folder = make_tiny_llama(tmp_path_factory.mktemp("tiny"))
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.add_special_tokens(SPECIAL)
    backend.save(str(folder / "tokenizer.json"))
    return folder


def tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {}, **fields}}


def asked(**changes: Any) -> GenerateRequest:
    prompt = Prompt(messages=({"role": "user", "content": "x"},), tools=(tool("f"), tool("g")))
    return replace(GenerateRequest(id="r", model="m", prompt=prompt), **changes)


def reader(
    folder: Path, request: GenerateRequest, template: str = LLAMA3, end: str = "", reasoning: str = "none"
) -> tuple[AnswerReader, Tokenizer]:
    tokenizer = Tokenizer.load(folder, chat_template=template)
    format = AnswerFormat.find(tokenizer, tools="auto", reasoning=reasoning, compact_json=False)
    prompt = tokenizer.encode_now("a long prompt before it " * 9 + end)
    return AnswerReader(format, request, prompt, tokenizer), tokenizer


def read(found: tuple[AnswerReader, Tokenizer], answer: str) -> AnswerPart:
    """`answer` as tokens, through detokenizer and parser."""
    reader, tokenizer = found
    output = OutputText(tokenizer, shown_ids=reader.marker_ids)
    text = output.push(tokenizer.encode_now(answer)).text + output.flush()
    parser = reader.parser()
    return AnswerPart(text) if parser is None else parser.feed(text, last=True)


def test_a_marker_that_is_a_special_token_is_seen_and_others_are_not(folder: Path) -> None:
    answer = '<|im_start|>Well.<|python_tag|>{"name": "f", "parameters": {}}<|im_end|>'
    parts = read(reader(folder, asked()), answer)
    assert (parts.text, [(p.name, p.arguments) for p in parts.calls]) == ("Well.", [("f", ""), (None, "{}")])
    for nothing in (Prompt(messages=asked().prompt.messages), Prompt(text="x", tools=asked().prompt.tools)):
        plain = read(reader(folder, asked(prompt=nothing)), answer)
        assert (plain.text, plain.calls) == ('Well.{"name": "f", "parameters": {}}', ())


@pytest.mark.parametrize(("choice", "called"), [(NAMED, ["g"]), (ToolChoice(), ["f", "g", "g"])])
def test_only_the_tools_of_the_choice_are_called(folder: Path, choice: ToolChoice, called: list[str]) -> None:
    calls = [f'{{"name": "{name}", "parameters": {{}}}}' for name in ("f", "g", "g")]
    answer = "<|python_tag|>" + "<|python_tag|>".join(calls)
    parts = read(reader(folder, asked(tool_choice=choice)), answer)
    assert [piece.name for piece in parts.calls if piece.name] == called


def thinks(folder: Path, end: str = "", **changes: Any) -> tuple[AnswerReader, Tokenizer]:
    return reader(folder, asked(**changes), end=end, reasoning="think")


def test_calls_in_thoughts_are_none_and_those_after_them_are(folder: Path) -> None:
    call = '{"name": "f", "parameters": {}}'
    thought = f"Hm <|python_tag|>{call} or not"
    for end, answer in (("", "<think>\n"), ("<think>\n", "")):
        parts = read(thinks(folder, end), f"{answer}{thought}</think>\n\n{call}")
        assert (parts.reasoning, parts.text, len(parts.calls)) == (thought, "", 2)
    off = read(thinks(folder, reasoning=False), "<think>Hm</think>Hi")
    assert (off.reasoning, off.text) == ("", "HmHi")


@pytest.mark.parametrize(("reasoning", "limits"), [("none", True), ("think", True), ("magistral", False)])
def test_a_budget_ends_thoughts_whose_end_is_a_token(folder: Path, reasoning: str, limits: bool) -> None:
    tokenizer = Tokenizer.load(folder, chat_template=LLAMA3)
    format = AnswerFormat.find(tokenizer, tools="none", reasoning=reasoning, compact_json=False)
    assert format.limits_thoughts(tokenizer) is limits
    mine, _ = reader(folder, asked(thinking_tokens=3), end="[THINK]<think>", reasoning=reasoning)
    assert (mine.grammar() is not None) is (limits and reasoning != "none")


def grammar(found: tuple[AnswerReader, Tokenizer]) -> str | None:
    made = found[0].grammar()
    return None if made is None else made.text


def test_grammars_are_made_only_where_they_are_needed(folder: Path) -> None:
    assert grammar(reader(folder, asked())) is None
    assert grammar(thinks(folder)) is None
    none = ToolChoice(mode=ToolMode.NONE)
    assert reader(folder, asked(grammar=SCHEMA, tool_choice=none))[0].grammar() == replace(
        SCHEMA, space=SPACE
    )
    compact = replace(SCHEMA, space=COMPACT)
    assert reader(folder, asked(grammar=compact, tool_choice=none))[0].grammar() is compact
    assert reader(folder, asked(grammar=REGEX))[0].grammar() is REGEX
    assert thinks(folder, "<think>", grammar=REGEX)[0].grammar() is REGEX
    assert read(thinks(folder, "<think>", grammar=REGEX), "aaa").text == "aaa"
    strict = replace(asked().prompt, tools=(tool("f", strict=True),))
    assert grammar(reader(folder, asked(prompt=strict))) is None  # nothing shows where a call begins
    made = grammar(reader(folder, asked(prompt=strict), template=MISTRAL))
    assert made is not None
    assert "start: TEXT calls?" in made


@pytest.mark.parametrize("compact", [True, False])
def test_the_operator_may_want_compact_json(folder: Path, compact: bool) -> None:
    tokenizer = Tokenizer.load(folder, chat_template=LLAMA3)
    format = AnswerFormat.find(tokenizer, tools="auto", reasoning="none", compact_json=compact)
    space = COMPACT if compact else SPACE
    bare = AnswerReader(format, asked(grammar=SCHEMA, prompt=Prompt(text="x")), [1], tokenizer).grammar()
    assert bare is not None
    assert bare.space == space
    forced = AnswerReader(format, asked(tool_choice=NAMED), [1], tokenizer).grammar()
    assert forced is not None
    assert json.dumps(space) in forced.text


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        ({"tool_choice": ToolChoice(mode=ToolMode.REQUIRED)}, "start: calls\n"),
        ({"tool_choice": NAMED}, "start: calls\n"),
        ({"grammar": SCHEMA}, "start: (said | calls)\n"),
        ({"grammar": REGEX, "tool_choice": NAMED}, "start: calls\n"),
    ],
)
def test_what_may_stand_in_an_answer(folder: Path, changes: dict[str, Any], start: str) -> None:
    made = grammar(reader(folder, asked(**changes)))
    assert made is not None
    assert start in made
    assert ('\\"f' in made) is (changes.get("tool_choice") != NAMED)


def test_thoughts_have_room_before_what_is_forced(folder: Path) -> None:
    made = grammar(thinks(folder, grammar=SCHEMA, tool_choice=ToolChoice(mode=ToolMode.NONE)))
    assert made is not None
    assert "start: thoughts said" in made
    assert json.dumps(json.loads(SCHEMA.text), separators=(",", ":"))[1:-1] in made


@pytest.mark.parametrize("mode", [ToolMode.REQUIRED, ToolMode.NAMED])
def test_calls_of_no_known_format_cannot_be_forced(folder: Path, mode: ToolMode) -> None:
    with pytest.raises(UnsupportedField) as caught:
        reader(folder, asked(tool_choice=ToolChoice(mode=mode, name="f")), template="{{ messages }}")
    assert caught.value.param == "tool_choice"
