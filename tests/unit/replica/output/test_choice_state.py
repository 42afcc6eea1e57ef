"""Why a choice ends: stop string before end token before length, whatever comes in one step."""

import pytest

from serve_app.replica.output.choice_state import ChoiceState
from serve_app.text.answer.output_text import OutputText
from serve_app.text.tokens.tokenizer import Tokenizer
from serve_app.types import EngineOutput, FinishReason
from tests.support.tiny_llama import make_tiny_llama


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(make_tiny_llama(tmp_path_factory.mktemp("tiny")))


async def pushed(
    tokenizer: Tokenizer, text: str, finish: FinishReason | None, stop: str = "", drop_last: int = 0
) -> tuple[str, FinishReason | None, str | int | None]:
    """What a client sees of `text` when its tokens come in one step that ends with `finish`."""
    ids = tuple(await tokenizer.encode(text, add_special_tokens=False))
    choice = ChoiceState(OutputText(tokenizer, stop=(stop,) if stop else ()), wants_logprobs=False)
    shown = ids[: len(ids) - drop_last]
    step = choice.push(EngineOutput(request_id="r", index=0, token_ids=shown, finish=finish))
    return step.text, step.finish, step.stop


@pytest.mark.parametrize("finish", [None, FinishReason.LENGTH, FinishReason.CONTEXT])
async def test_a_stop_string_wins(tokenizer: Tokenizer, finish: FinishReason | None) -> None:
    assert await pushed(tokenizer, "some words", finish, stop="wo") == ("some ", FinishReason.STOP, "wo")


async def test_a_stop_string_of_characters_of_several_tokens_is_found(tokenizer: Tokenizer) -> None:
    found = await pushed(tokenizer, "one 鯨 two", FinishReason.LENGTH, stop="鯨")
    assert found == ("one ", FinishReason.STOP, "鯨")


async def test_half_a_character_at_the_end_may_complete_a_stop_string(tokenizer: Tokenizer) -> None:
    whole = await pushed(tokenizer, "one 鯨", FinishReason.LENGTH, drop_last=1)
    assert whole == ("one \ufffd", FinishReason.LENGTH, None)
    cut = await pushed(tokenizer, "one 鯨", FinishReason.LENGTH, stop="\ufffd", drop_last=1)
    assert cut == ("one ", FinishReason.STOP, "\ufffd")
