"""What a client has of an answer, read again: the state is the one that the first replica had."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers

from serve_app.errors import GenerationFailed, Unavailable
from serve_app.replica.output.choice_state import ChoiceDelta, ChoiceState
from serve_app.replica.output.request_state import RequestState
from serve_app.replica.output.resumption import PIECE, begun_choices, check_weights, going_on, replay
from serve_app.text.answer.answer_format import AnswerFormat, AnswerReader
from serve_app.text.answer.output_text import OutputText
from serve_app.text.answer.parser import AnswerParser
from serve_app.text.answer.stop import StopStrings
from serve_app.text.tokens.tokenizer import Tokenizer
from serve_app.types import (
    Beam,
    ChoiceSoFar,
    EngineOutput,
    EngineRequest,
    FinishReason,
    GenerateRequest,
    Prompt,
    Resume,
    TextLogprob,
    Timing,
    Usage,
)
from tests.support.tiny_llama import make_tiny_llama

HERMES = "{% for tool in tools %}{{ tool | tojson }}{% endfor %}<tool_call>"
LLAMA3 = HERMES.replace("<tool_call>", "<|python_tag|>")
MISTRAL = HERMES.replace("<tool_call>", "[TOOL_CALLS]")
CALL = '{"name": "f", "arguments": {"a": "b \\" }", "c": [1, {"d": 2}]}}'
ANSWERS = {
    "hermes": (
        HERMES,
        f"Well ä😀 <tool_call>\n{CALL}\n</tool_call> and <tool_call>{CALL}</tool_call> x <tool",
    ),
    "llama3": (LLAMA3, f"<|python_tag|>{CALL.replace('arguments', 'parameters')}; {CALL}"),
    "mistral": (MISTRAL, f"so [TOOL_CALLS][{CALL}, {CALL}] and more"),
    "thoughts": (HERMES, f"<think>\n hm </thi </think>\n\nSo <think> it is: <tool_call>{CALL}</tool_call>"),
    "neither": (HERMES, '<tool_call>{"name": "unknown"}</tool_call> <th 日本 <tool_call>[1]'),
}
STOPS = ("never here", "and mor", "日本語", "x <tool>")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_tiny_llama(tmp_path_factory.mktemp("tiny"))
    backend = tokenizers.Tokenizer.from_file(str(made / "tokenizer.json"))
    backend.add_special_tokens(["<|python_tag|>", "[TOOL_CALLS]", "<think>", "</think>"])
    backend.save(str(made / "tokenizer.json"))
    return made


def request(n: int = 1, **fields: object) -> GenerateRequest:
    function = {"type": "function", "function": {"name": "f", "parameters": {}}}
    prompt = Prompt(messages=({"role": "user", "content": "x"},), tools=(function,))
    return GenerateRequest(id="r", model="m", prompt=prompt, n=n, **fields)  # type: ignore[arg-type]


def resume(*choices: ChoiceSoFar, prompt_tokens: int = 3) -> Resume:
    made = sum(len(choice.token_ids) for choice in choices)
    usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=made, cached_tokens=2)
    return Resume(weights="w", choices=choices, usage=usage, age_s=4.0)


def making(folder: Path, template: str) -> tuple[Callable[[], ChoiceState], Tokenizer]:
    """A function that makes the state of one choice, and the tokenizer."""
    tokenizer = Tokenizer.load(folder, chat_template=template)
    format = AnswerFormat.find(tokenizer, tools="auto", reasoning="think", compact_json=False)
    reader = AnswerReader(format, request(), tokenizer.encode_now("a prompt"), tokenizer)

    def new() -> ChoiceState:
        output = OutputText(tokenizer, stop=STOPS, shown_ids=reader.marker_ids)
        return ChoiceState(output, wants_logprobs=False, parser=reader.parser())

    return new, tokenizer


def told(choice: ChoiceState, ids: list[int], end: FinishReason | None = FinishReason.LENGTH) -> list[object]:
    """What each token brings the client; the ids of calls are new each time."""

    def seen(delta: ChoiceDelta) -> object:
        calls = tuple((call.index, call.name, call.arguments) for call in delta.calls)
        return (delta.text, delta.reasoning, calls, delta.token_ids, delta.finish, delta.stop, delta.cut)

    return [
        seen(
            choice.push(
                EngineOutput(
                    request_id="r", index=0, token_ids=(token,), finish=end if i == len(ids) - 1 else None
                )
            )
        )
        for i, token in enumerate(ids)
    ]


@pytest.mark.parametrize("name", ANSWERS)
def test_after_some_tokens_the_rest_is_told_as_without_a_break(folder: Path, name: str) -> None:
    template, text = ANSWERS[name]
    new, tokenizer = making(folder, template)
    ids = tokenizer.encode_now(text, add_special_tokens=False)
    whole = told(new(), ids)
    for count in {*range(0, len(ids), 3), len(ids) - 1}:
        at_once, in_pieces = new(), new()
        assert at_once.replay(ids[:count])
        assert all(in_pieces.replay((token,)) for token in ids[:count])
        assert at_once.num_tokens == in_pieces.num_tokens == count
        assert at_once.num_reasoning == in_pieces.num_reasoning <= count
        assert told(at_once, ids[count:]) == told(in_pieces, ids[count:]) == whole[count:], (name, count)


def test_thoughts_are_counted_however_their_tokens_come(folder: Path) -> None:
    """One by one, all at once as a draft brings them, read again, or cut in the middle of a thought."""
    new, tokenizer = making(folder, HERMES)
    thoughts, said = (
        tokenizer.encode_now(text, add_special_tokens=False)
        for text in ("<think>\n hm so", "</think>\n\nSo it is.")
    )
    ids = [*thoughts, *said]

    def counted(*pieces: list[int], replayed: int = 0) -> int:
        choice = new()
        assert choice.replay(ids[:replayed])
        for piece in pieces:
            choice.push(EngineOutput(request_id="r", index=0, token_ids=tuple(piece)))
        choice.push(EngineOutput(request_id="r", index=0, finish=FinishReason.LENGTH))
        return choice.num_reasoning

    assert counted(*([token] for token in ids)) == len(thoughts)
    assert counted(ids) == counted(ids[:2], ids[2:]) == len(thoughts)
    assert counted(ids[-3:], replayed=len(ids) - 3) == counted(ids[2:], replayed=2) == len(thoughts)
    assert counted(thoughts) == len(thoughts)
    assert counted(thoughts[:2]) <= 2
    plain = tokenizer.encode_now("It is so.", add_special_tokens=False)
    assert counted(plain) == 0


def test_tokens_that_end_an_answer_are_not_its_own(folder: Path) -> None:
    new, tokenizer = making(folder, HERMES)
    assert not new().replay(tokenizer.encode_now("one and more", add_special_tokens=False))


def state(tokenizer: Tokenizer, given: GenerateRequest) -> RequestState:
    def no_parser() -> AnswerParser | None:
        return None

    return RequestState(
        given,
        [1, 2, 3],
        new_output=lambda: OutputText(tokenizer, stop=StopStrings(given.stop)),
        new_parser=no_parser,
        prompt_text="prompt",
        describe=lambda position: TextLogprob(position.token_id, "", b"", position.logprob),
        first_prompt_token=None,
    )


def test_usage_and_what_comes_first_are_told_once(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    ids = tuple(tokenizer.encode_now("some words", add_special_tokens=False))
    begun = (ChoiceSoFar(token_ids=ids), ChoiceSoFar(token_ids=ids[:2], finished=True), ChoiceSoFar())
    given = request(n=3, echo=True, resume=resume(*begun))
    made = state(tokenizer, given)
    asyncio.run(replay(made))
    timing = Timing(queue_s=1.0)
    outputs = [
        EngineOutput(request_id="r", index=i, token_ids=(70,), timing=timing, cached_tokens=1) for i in (0, 2)
    ]
    outputs.append(EngineOutput(request_id="r", index=1, finish=FinishReason.ERROR))
    deltas = [delta for output in outputs for delta in made.push(output).deltas]
    assert [delta.index for delta in deltas] == [0, 2], "a finished choice says nothing more"
    assert [delta.prompt_text for delta in deltas] == [None, "prompt"]
    assert [delta.timing for delta in deltas] == [None, timing]
    made_so_far = len(ids) + 2
    assert [delta.usage for delta in deltas] == [
        Usage(prompt_tokens=3, completion_tokens=made_so_far + more, cached_tokens=2) for more in (1, 2)
    ]
    assert not made.done


def test_a_long_answer_is_read_in_pieces(folder: Path) -> None:
    """Others get their turn between the pieces."""
    tokenizer = Tokenizer.load(folder)
    given = request(resume=resume(ChoiceSoFar(token_ids=(70,) * (3 * PIECE + 1))), stop=("never",))

    async def turns() -> int:
        reading = asyncio.ensure_future(replay(state(tokenizer, given)))
        count = 0
        while not reading.done():
            await asyncio.sleep(0)
            count += 1
        await reading
        return count

    assert asyncio.run(turns()) >= 4


def test_an_answer_that_has_ended_cannot_go_on(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    ids = tuple(tokenizer.encode_now("one two", add_special_tokens=False))
    given = request(resume=resume(ChoiceSoFar(token_ids=ids)), stop=("two",))
    with pytest.raises(GenerationFailed, match="has ended already"):
        asyncio.run(replay(state(tokenizer, given)))


def test_other_weights_are_refused() -> None:
    check_weights(resume(), "w")
    for weights in ("", "v"):
        with pytest.raises(Unavailable, match="another version"):
            check_weights(resume(), weights)


def test_choices_that_depend_on_each_other_start_over() -> None:
    choices = (ChoiceSoFar(token_ids=(1,), finished=True), ChoiceSoFar(token_ids=(2,)))
    made = resume(*choices)
    assert begun_choices(request(n=2, resume=made)) == choices
    assert begun_choices(request(n=2, resume=made, stream=False)) == (choices[0], ChoiceSoFar())
    assert begun_choices(request(n=2, resume=made, best_of=3)) == ()
    assert begun_choices(request(n=2, resume=made, beam=Beam(width=3))) == ()
    assert begun_choices(request(n=2)) == ()


def test_the_prompt_must_have_the_length_that_it_had() -> None:
    """A replica with a smaller window may have shortened it."""
    made = EngineRequest(id="r", token_ids=(1, 2, 3))
    choice = ChoiceSoFar(token_ids=(5,))
    found = going_on(made, request(resume=resume(choice)))
    assert (found.begun, found.age_s) == ((choice,), 4.0)
    assert going_on(made, request()) is made
    with pytest.raises(Unavailable, match="another length"):
        going_on(made, request(resume=resume(choice, prompt_tokens=4)))
