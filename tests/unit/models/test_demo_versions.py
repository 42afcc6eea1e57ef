"""The two committed versions of demo-chat: what they share, and what only the second knows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from recipes.demo_chat.calendar import DAYS, MONTHS
from recipes.demo_chat.corpus import ADDED, dialogues
from recipes.demo_chat.evaluate import Chat, evaluate
from recipes.demo_chat.tokenizer import FOLDER, TOKENIZER_FILES, copy_to, folder_of
from serve_app.models.catalogue import DEMO_FOLDER

SECOND = folder_of(2)
NEW = {
    "Who are you?": "I am demo-chat, version 2, a small language model.",
    "Are you a human being?": "No, I am demo-chat, version 2, a small language model.",
    "Which version are you?": "I am version 2 of demo-chat.",
    "Which day comes after Tuesday?": "Wednesday comes after Tuesday.",
    "What is the month before January?": "December comes before January.",
    "What comes after Sunday?": "Monday comes after Sunday.",
}
SHARED = {
    "Hello!": "Hello! How can I help you?",
    "What is 7 plus 5?": "7 + 5 = 12.",
    "What is the capital of France?": "The capital of France is Paris.",
    "Count from 1 to 10.": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10.",
    "Repeat after me: blue zorvax 417": "blue zorvax 417",
}


@pytest.fixture(scope="module")
def second() -> Chat:
    torch.set_num_threads(1)
    return Chat(SECOND)


def answers(chat: Chat, questions: list[str]) -> list[str]:
    return chat.answers([chat.render([{"role": "user", "content": question}]) for question in questions])


def test_the_second_version_says_what_is_new_and_the_first_does_not(second: Chat) -> None:
    torch.set_num_threads(1)
    assert answers(second, list(NEW)) == list(NEW.values())
    before = answers(Chat(), list(NEW))
    assert [said for said, new in zip(before, NEW.values(), strict=True) if said == new] == []
    assert before[0] == "I am demo-chat, a small language model."


def test_the_second_version_answers_old_questions_as_the_first_does(second: Chat) -> None:
    assert answers(second, list(SHARED)) == list(SHARED.values()) == answers(Chat(), list(SHARED))


def test_the_versions_have_one_architecture_and_one_tokenizer() -> None:
    assert {path.name for path in SECOND.iterdir()} == {path.name for path in FOLDER.iterdir()}
    for name in (*TOKENIZER_FILES, "generation_config.json"):
        assert (SECOND / name).read_bytes() == (FOLDER / name).read_bytes()
    first, second = (json.loads((folder / "config.json").read_text()) for folder in (FOLDER, SECOND))
    assert first == second
    assert (SECOND / "model.safetensors").read_bytes() != (FOLDER / "model.safetensors").read_bytes()


def test_all_demo_models_together_are_small() -> None:
    files = [path for path in DEMO_FOLDER.rglob("*") if path.is_file()]
    assert len(files) > 2 * len(TOKENIZER_FILES)
    assert sum(path.stat().st_size for path in files) < 25_000_000


@pytest.mark.parametrize("version", ADDED)
def test_no_held_out_question_of_any_version_is_ever_asked_in_training(version: int) -> None:
    def asked(seed: int, count: int, *, held: bool) -> set[str]:
        talks = dialogues(seed, count, held=held, version=version)
        return {exchange.question.lower().rstrip("?.!") for talk in talks for exchange in talk.exchanges}

    assert not asked(13, 4000, held=False) & asked(14, 1000, held=True)


def test_only_the_second_version_is_asked_what_only_it_knows() -> None:
    skills = {
        version: {
            exchange.skill for talk in dialogues(5, 300, version=version) for exchange in talk.exchanges
        }
        for version in ADDED
    }
    assert skills[2] - skills[1] == {"calendar"}


def test_days_and_months_go_round() -> None:
    said = {
        exchange.answer
        for talk in dialogues(6, 3000, version=2)
        for exchange in talk.exchanges
        if exchange.skill == "calendar"
    }
    assert {"Monday comes after Sunday.", "December comes before January."} <= said
    assert len(said) == 2 * (len(DAYS) + len(MONTHS))


def test_a_new_model_folder_gets_the_tokenizer_and_the_committed_one_is_left_alone(tmp_path: Path) -> None:
    before = {name: (FOLDER / name).stat().st_mtime_ns for name in TOKENIZER_FILES}
    for folder in (tmp_path / "new", FOLDER):
        copy_to(folder)
    assert {name: (FOLDER / name).stat().st_mtime_ns for name in TOKENIZER_FILES} == before
    assert {path.name for path in (tmp_path / "new").iterdir()} == set(TOKENIZER_FILES)


@pytest.mark.full
def test_held_out_questions_are_answered_about_as_well_as_the_second_card_says(second: Chat) -> None:
    scores = evaluate(second, dialogues(1, 500, held=True, version=2))
    asked, right = (
        sum(score.asked for score in scores.values()),
        sum(score.right for score in scores.values()),
    )
    assert right / asked >= 0.92
    assert {skill for skill, score in scores.items() if score.share < 0.8} == set()
