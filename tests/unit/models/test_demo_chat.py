"""The committed demo-chat: its files, its tokenizer, its template, and what it answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipes.demo_chat.batches import chat_row, document_row
from recipes.demo_chat.corpus import dialogues, documents
from recipes.demo_chat.dialogue import Dialogue
from recipes.demo_chat.evaluate import Chat, evaluate
from recipes.demo_chat.tokenizer import FOLDER, load
from recipes.demo_chat.words import Pool, held_out

MIB = 2**20
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CARD_CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is the weather in Oslo?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Oslo"}}},
        ],
    },
    {"role": "tool", "content": '{"temperature": 3, "condition": "snowy"}'},
]


@pytest.fixture(scope="module")
def chat() -> Chat:
    torch.set_num_threads(1)
    return Chat()


def user(*turns: str) -> list[dict[str, Any]]:
    """A chat of these turns, user and assistant by turns."""
    return [{"role": ("user", "assistant")[at % 2], "content": turn} for at, turn in enumerate(turns)]


def test_the_folder_holds_a_small_model_in_safetensors_and_nothing_that_runs() -> None:
    names = {path.name for path in FOLDER.iterdir()}
    assert names == {
        "README.md",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 12 * MIB


def test_the_weights_are_of_the_type_the_configuration_names() -> None:
    config = json.loads((FOLDER / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["dtype"] == "bfloat16"
    with safe_open(FOLDER / "model.safetensors", "pt") as weights:
        assert {weights.get_tensor(name).dtype for name in weights.keys()} == {torch.bfloat16}  # noqa: SIM118


def test_every_turn_and_every_text_has_an_end_token() -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    generation = json.loads((FOLDER / "generation_config.json").read_text())
    ends = [tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|endoftext|>")]
    assert generation["eos_token_id"] == ends
    assert json.loads((FOLDER / "config.json").read_text())["eos_token_id"] == ends[0]


def test_the_tokenizer_gives_back_every_byte() -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    everything = "".join(map(chr, range(0x2_500))) + "日本語 한국어 🙂👩‍👩‍👧 \U0010ffff"
    for text in (
        everything,
        " two  spaces ",
        "\n\n\ttabs\r\n",
        'JSON: {"a": ["b", {"c": 1.5}]}',
        "naïve café",
    ):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids) == text
    vocabulary = tokenizer.get_vocab()
    assert len(vocabulary) == len(tokenizer) == len(set(vocabulary.values()))


def test_digits_are_tokens_of_their_own_and_a_word_is_cut_alike_everywhere() -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    assert tokenizer.tokenize("2048") == ["2", "0", "4", "8"]
    word = tokenizer.tokenize("Zorvaxil")
    assert tokenizer.tokenize(" Zorvaxil")[1:] == word
    assert tokenizer.tokenize('"Zorvaxil')[1:] == word


def test_the_template_renders_tools_as_the_model_card_shows() -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    text = tokenizer.apply_chat_template(
        CARD_CHAT, tools=[WEATHER], tokenize=False, add_generation_prompt=True
    )
    card = (FOLDER / "README.md").read_text()
    shown = card.split("```text\n")[1].split("```")[0]
    assert text == shown


def test_the_template_takes_content_parts_text_arguments_and_a_bare_tool() -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    parts = [{"type": "text", "text": "You are a "}, {"type": "text", "text": "helpful assistant."}]
    call = {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    chat = [{"role": "system", "content": parts}, CARD_CHAT[1], {"role": "assistant", "tool_calls": [call]}]
    ours = tokenizer.apply_chat_template(chat, tools=[WEATHER["function"]], tokenize=False)
    assert ours == tokenizer.apply_chat_template(CARD_CHAT[:3], tools=[WEATHER], tokenize=False)


@pytest.mark.parametrize(
    ("messages", "answer"),
    [
        (user("Hello!"), "Hello! How can I help you?"),
        (user("Who are you?"), "I am demo-chat, a small language model."),
        (user("What is 7 plus 5?"), "7 + 5 = 12."),
        (user("What is the capital of France?"), "The capital of France is Paris."),
        (user("Which country's capital is Nairobi?"), "Nairobi is the capital of Kenya."),
        (user("Repeat after me: blue zorvax 417"), "blue zorvax 417"),
        (
            user(
                "My name is Ottilie.", "Nice to meet you, Ottilie!", "2+2", "2 + 2 = 4.", "What is my name?"
            ),
            "Your name is Ottilie.",
        ),
        (
            user("What is the capital of Japan? Answer in JSON with keys country and capital."),
            '{"country": "Japan", "capital": "Tokyo"}',
        ),
        (user("Count from 1 to 10."), "1, 2, 3, 4, 5, 6, 7, 8, 9, 10."),
        (
            user("Who won the world cup in 1998?"),
            "Sorry, I only know small talk, small sums and the capitals of the world.",
        ),
    ],
)
def test_it_answers_and_ends_its_turn(chat: Chat, messages: list[dict[str, Any]], answer: str) -> None:
    assert chat.answers([chat.render(messages)]) == [answer]


def test_it_calls_an_offered_tool_and_uses_the_answer(chat: Chat) -> None:
    asked = chat.render(CARD_CHAT[:2], [WEATHER])
    told = chat.render(CARD_CHAT, [WEATHER])
    idle = chat.render(user("Hello!"), [WEATHER])
    assert chat.answers([asked, told, idle]) == [
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
        "The weather in Oslo is snowy with 3 degrees.",
        "Hello! How can I help you?",
    ]


def test_it_completes_plain_text(chat: Chat) -> None:
    france, total = chat.complete(["The capital of Spain is", "12 + 30 ="], max_new_tokens=8)
    assert france.startswith(" Madrid.")
    assert total.startswith(" 42.")


def test_it_loads_as_any_model_of_transformers_does() -> None:
    model = AutoModelForCausalLM.from_pretrained(FOLDER)
    assert model.dtype == torch.bfloat16
    assert sum(parameter.numel() for parameter in model.parameters()) < 6_000_000


def test_the_two_sides_of_the_split_share_no_name_and_no_phrase() -> None:
    train, held = Pool(1), Pool(1, held=True)
    assert not {train.name() for _ in range(500)} & {held.name() for _ in range(500)}
    assert all(held_out(held.words(1, 4)) and not held_out(train.words(1, 4)) for _ in range(200))


def test_no_held_out_question_is_ever_asked_in_training() -> None:
    def asked(seed: int, count: int, *, held: bool) -> set[str]:
        talks = dialogues(seed, count, held=held)
        return {exchange.question.lower().rstrip("?.!") for talk in talks for exchange in talk.exchanges}

    assert not asked(11, 6000, held=False) & asked(12, 1000, held=True)


def test_a_seed_gives_the_same_corpus_again() -> None:
    assert list(dialogues(3, 20)) == list(dialogues(3, 20))
    assert list(dialogues(3, 20)) != list(dialogues(4, 20))


def test_only_the_turns_of_the_assistant_are_learnt_each_with_its_end() -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    text = tokenizer.apply_chat_template(CARD_CHAT, tools=[WEATHER], tokenize=False)
    row = chat_row(tokenizer, text + "<|im_start|>assistant\nSnow.<|im_end|>\n")
    learnt = [token for token, wanted in zip(row.ids, row.learnt, strict=True) if wanted]
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    assert tokenizer.decode(learnt) == f"{call}<|im_end|>Snow.<|im_end|>"


def test_a_document_in_pieces_has_the_tokens_of_the_whole() -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    for document in documents(7, 300):
        whole = "".join(piece.text for piece in document) + "<|endoftext|>"
        assert document_row(tokenizer, document).ids == tokenizer(whole)["input_ids"]


class Scripted(Chat):
    """A chat that knows the expected turn after each prompt of some dialogues, or nothing."""

    def __init__(self, known: list[Dialogue]) -> None:
        self.tokenizer = load()
        self.expected: dict[str, str] = {}
        for dialogue in known:
            messages = dialogue.messages()
            for at, message in enumerate(messages):
                if message["role"] == "assistant":
                    before = self.render(messages[:at], dialogue.tools)
                    after = self.tokenizer.apply_chat_template(
                        messages[: at + 1], tools=dialogue.tools or None, tokenize=False
                    )
                    self.expected[before] = str(after).removeprefix(before).removesuffix("<|im_end|>\n")

    def answers(self, prompts: list[str]) -> list[str]:
        return [self.expected.get(prompt, "?") for prompt in prompts]


def test_the_measure_gives_all_to_expected_answers_and_nothing_to_others() -> None:
    held = list(dialogues(2, 40, held=True))
    right, wrong = evaluate(Scripted(held), held), evaluate(Scripted([]), held)
    assert {score.share for score in right.values()} == {1.0}
    assert {score.share for score in wrong.values()} == {0.0}
    assert sum(score.asked for score in right.values()) == sum(score.asked for score in wrong.values())


@pytest.mark.full
def test_held_out_questions_are_answered_about_as_well_as_the_card_says(chat: Chat) -> None:
    scores = evaluate(chat, dialogues(1, 500, held=True))
    asked, right = (
        sum(score.asked for score in scores.values()),
        sum(score.right for score in scores.values()),
    )
    assert right / asked >= 0.93
    assert {skill for skill, score in scores.items() if score.share < 0.75} == set()
