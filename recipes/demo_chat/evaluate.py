"""Measures a version of demo-chat on held-out dialogues, skill by skill.

The dialogues hold names, words, phrases, sums, cities, tools and ways of asking
that training never draws (see `words.held_out`). Decoding is greedy, in float32 on
the weights as committed. The model sees its own earlier answers, as in a real
chat; only a wrong call is replaced by the right one, so that the tool can answer.
An answer is right when it is exactly the expected one (of a call: when it parses to
the expected name and arguments) and the turn ends by itself.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

from recipes.demo_chat.corpus import ADDED, dialogues
from recipes.demo_chat.dialogue import Call, Dialogue, Exchange, Message, call_messages
from recipes.demo_chat.tokenizer import CONTEXT, FOLDER, folder_of, load


@dataclass
class Score:
    """Right answers of a skill, and the wrong ones to look at."""

    right: int = 0
    asked: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        return self.right / max(1, self.asked)


@dataclass
class Conversation:
    """A dialogue in progress: what has been said, and what is still to be asked."""

    dialogue: Dialogue
    said: list[Message]
    left: list[Exchange]
    calling: bool = False  # the call of `left[0]` is made, its answer is not


class Chat:
    """Greedy answers of the model to a batch of chats."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self.tokenizer: PreTrainedTokenizerBase = load(folder)
        self.tokenizer.padding_side = "left"
        self.model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def complete(self, prompts: list[str], max_new_tokens: int = 200) -> list[str]:
        """What follows each prompt: up to and with `<|im_end|>`, or up to `<|endoftext|>`."""
        inputs = self.tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
        with torch.inference_mode():
            output = self.model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
        texts = self.tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :])
        return [text.split("<|endoftext|>")[0] for text in texts]

    def render(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> str:
        text = self.tokenizer.apply_chat_template(
            messages, tools=tools or None, tokenize=False, add_generation_prompt=True
        )
        return str(text)

    def answers(self, prompts: list[str]) -> list[str]:
        """The assistant's turn after each prompt; one that does not end is marked and matches nothing."""
        texts = self.complete(prompts)
        return [
            text.removesuffix("<|im_end|>") if text.endswith("<|im_end|>") else text + " ..."
            for text in texts
        ]


def evaluate(chat: Chat, held: Iterable[Dialogue], *, together: int = 64) -> dict[str, Score]:
    """The score of every skill on `held` dialogues."""
    scores: dict[str, Score] = defaultdict(Score)
    waiting = [
        Conversation(
            dialogue, [] if dialogue.system is None else [_system(dialogue.system)], dialogue.exchanges[:]
        )
        for dialogue in held
    ]
    while waiting:
        for talk in waiting:
            if not talk.calling:
                talk.said.append({"role": "user", "content": talk.left[0].question})
        prompts = [chat.render(talk.said, talk.dialogue.tools) for talk in waiting]
        order = sorted(range(len(prompts)), key=lambda at: len(prompts[at]))
        for start in range(0, len(order), together):
            chosen = order[start : start + together]
            for at, text in zip(chosen, chat.answers([prompts[at] for at in chosen]), strict=True):
                _judge(scores, waiting[at], text)
        waiting = [talk for talk in waiting if talk.left and _fits(chat, talk)]
    return scores


def table(scores: dict[str, Score]) -> str:
    """The scores as a Markdown table, with a line for all."""
    rows = [f"| {skill} | {score.asked} | {score.share:.1%} |" for skill, score in sorted(scores.items())]
    asked, right = sum(s.asked for s in scores.values()), sum(s.right for s in scores.values())
    head = ["| skill | held-out questions | right |", "|---|---:|---:|"]
    return "\n".join([*head, *rows, f"| **all** | {asked} | **{right / max(1, asked):.1%}** |"])


def _judge(scores: dict[str, Score], talk: Conversation, text: str) -> None:
    exchange = talk.left[0]
    if exchange.call is not None and not talk.calling:
        right = _is_call(text, exchange.call)
        _count(scores[f"{exchange.skill}: call"], right, exchange.question, text)
        talk.said += call_messages(exchange.call)
        talk.calling = True
        return
    skill = f"{exchange.skill}: answer" if exchange.call is not None else exchange.skill
    _count(scores[skill], exchange.accepts(text), exchange.question, text)
    talk.said.append({"role": "assistant", "content": text})
    talk.left.pop(0)
    talk.calling = False


def _is_call(text: str, call: Call) -> bool:
    inner = text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
    try:
        return text != inner and bool(json.loads(inner) == {"name": call.name, "arguments": call.arguments})
    except ValueError:
        return False


def _count(score: Score, right: bool, question: str, text: str) -> None:
    score.asked += 1
    score.right += right
    if not right:
        score.wrong.append(f"{question!r} -> {text!r}")


def _fits(chat: Chat, talk: Conversation) -> bool:
    return len(chat.tokenizer(chat.render(talk.said, talk.dialogue.tools))["input_ids"]) < CONTEXT - 250


def _system(text: str) -> Message:
    return {"role": "system", "content": text}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", type=int, choices=ADDED, default=1, help="which questions are asked")
    parser.add_argument("--model", type=Path, help="model folder; none: that of the version")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dialogues", type=int, default=500)
    parser.add_argument("--wrong", type=int, default=3, help="wrong answers to show of each skill")
    options = parser.parse_args()
    held = dialogues(options.seed, options.dialogues, held=True, version=options.version)
    scores = evaluate(Chat(options.model or folder_of(options.version)), held)
    for skill, score in sorted(scores.items()):
        for line in score.wrong[: options.wrong]:
            print(f"{skill}: {line}")
    print(table(scores))


if __name__ == "__main__":
    main()
