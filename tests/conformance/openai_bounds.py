"""Fields that both bodies of OpenAI's protocol share: their bounds and their defaults, as tables."""

from __future__ import annotations

from typing import Any, Final

import pytest

from serve_app.types import FinishReason
from tests.conformance.fields import Bounds

BOOLEAN: Final[tuple[list[Any], list[Any]]] = ([True, False, None], [1, 0, "true"])
PENALTY: Final[tuple[list[Any], list[Any]]] = ([-2, 2, 0.5, None], [-2.01, 2.01, "1", True])

ANSWER: Final[Bounds] = {  # of all bodies that generate
    "model": ([], [None, 5, "", ["demo"], "x" * 257]),
    "logit_bias": (
        [{}, {"5": -100, "6": 100}, None],
        [{"5": 100.1}, {"5": -100.1}, {"x": 1}, {"-1": 1}, {"5": "1"}, [], 5],
    ),
    "stop": (["x", [], ["x"] * 4, ["x"] * 1024, "x" * 1024, None],
             [["x"] * 1025, "x" * 1025, "", [""], [5], 5]),
    "stop_token_ids": ([[], [0, 5], None], [[-1], ["1"], [2**31], 5]),
    "bad_words": ([[], ["no"], None], [[""], "no", [5], 5]),
    "allowed_token_ids": ([[5], None], [[-1], ["1"], 5]),
    "logits_processors": ([[], None], [5, [5], [""], ["unknown"], [{}]]),
    "min_tokens": ([0, 2, None], []),
    "user": (["", "ann", "x" * 512, None], ["x" * 513, 5]),
    "stream": ([True, False, None], []),
    "timeout": ([60, 3600, None], []),
}  # fmt: skip
SHARED: Final[Bounds] = {  # of chats and completions
    **ANSWER,
    "n": ([1, 3, pytest.param(128, marks=pytest.mark.full), None], []),
    "best_of": ([1, 3, None], []),
    "use_beam_search": ([False, None], []),
    "prompt_logprobs": ([0, 20, None], []),
    "stream_options": ([None], [{}, {"include_usage": True}, 5]),
    "truncate_prompt_tokens": ([-1, 1, 2**31 - 1, None], []),
    "cache_salt": (["x", "x" * 256, None], ["", "x" * 257, 5]),
    "repetition_detection": (
        [{}, {"max_pattern_size": 0}, {"max_pattern_size": 2, "min_count": 2},
         {"max_pattern_size": 1024, "min_pattern_size": 1024, "min_count": 1024}, None],
        [5, []]),
    "response_format": ([{"type": "text"}, {"type": "json_object"}, None], [{"type": "xml"}, {}, 5]),
    "guided_regex": (["[a-z]+", None], ["", 5]),
    "guided_choice": ([["a", "b"], None], [[], [""], "a", 5]),
    "guided_grammar": (['start: "a"', None], ["", 5]),
    "guided_json": ([{"type": "object"}, None], ["x", 5]),
    "guided_whitespace_pattern": (["", " ?", "[ \\n]*", None], ["x", " {65}", 5]),
    "structured_outputs": ([{"choice": ["a"]}, {}, None], [{"regex": "a", "choice": ["a"]}, 5]),
}  # fmt: skip

LOOPS: Final[list[tuple[dict[str, Any], str]]] = [  # `repetition_detection` -> its member at fault
    ({"max_pattern_size": 2}, "min_count"),
    ({"max_pattern_size": 2, "min_count": 1}, "min_count"),
    ({"max_pattern_size": 2, "min_count": 1025}, "min_count"),
    ({"max_pattern_size": 1025, "min_count": 2}, "max_pattern_size"),
    ({"max_pattern_size": -1}, "max_pattern_size"),
    ({"max_pattern_size": "1", "min_count": 2}, "max_pattern_size"),
    ({"max_pattern_size": 1, "min_pattern_size": 2, "min_count": 2}, "min_pattern_size"),
    ({"min_pattern_size": 1}, "min_pattern_size"),
]

# Fields beside each other -> the field that is complained of, if one is.
TOGETHER: Final[dict[str, tuple[dict[str, Any], str | None]]] = {
    "best_of=n": ({"n": 2, "best_of": 2}, None),
    "best_of-above-n": ({"n": 1, "best_of": 3}, None),
    "best_of-below-n": ({"n": 3, "best_of": 2}, "best_of"),
    "best_of-above-n-in-a-stream": ({"n": 1, "best_of": 2, "stream": True}, "best_of"),
    "best_of=n-in-a-stream": ({"n": 2, "best_of": 2, "stream": True}, None),
    "use_beam_search": ({"use_beam_search": True, "best_of": 4, "n": 2}, None),
    "repetition_detection-in-a-search": (
        {"use_beam_search": True, "n": 2, "repetition_detection": {"max_pattern_size": 1, "min_count": 2}},
        "repetition_detection",
    ),
    "use_beam_search-of-one": ({"use_beam_search": True}, "n"),
    "use_beam_search-of-n": ({"use_beam_search": True, "n": 2}, None),
    "num_beam_groups": ({"use_beam_search": True, "best_of": 4, "num_beam_groups": 2}, None),
    "num_beam_groups-does-not-divide": (
        {"use_beam_search": True, "best_of": 4, "num_beam_groups": 3}, "num_beam_groups",
    ),
    "length_penalty=10": ({"use_beam_search": True, "n": 2, "length_penalty": 10}, None),
    "length_penalty=10.1": ({"use_beam_search": True, "n": 2, "length_penalty": 10.1}, "length_penalty"),
    "diversity_penalty=100": ({"use_beam_search": True, "n": 2, "diversity_penalty": 100}, None),
    "diversity_penalty=-1": ({"use_beam_search": True, "n": 2, "diversity_penalty": -1}, "diversity_penalty"),
    "early_stopping=never": ({"use_beam_search": True, "n": 2, "early_stopping": "never"}, None),
    "early_stopping=5": ({"use_beam_search": True, "n": 2, "early_stopping": 5}, "early_stopping"),
    "include_usage": ({"stream": True, "stream_options": {"include_usage": True}}, None),
    "stream_options-a-list": ({"stream": True, "stream_options": []}, "stream_options"),
    "include_usage=1": ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options"),
    "continuous_usage_stats": ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, None),
    "continuous_usage_stats=1": (
        {"stream": True, "stream_options": {"continuous_usage_stats": 1}}, "stream_options",
    ),
    "prompt_logprobs-in-a-stream": ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
    "two-forms": ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
}  # fmt: skip

VARIED: Final = {"temperature": 2, "max_tokens": 24, "seed": 9}  # the demo model is sure of itself

# field -> (its default, another value, what else must be said for it to matter)
DEFAULTS: Final[dict[str, tuple[Any, Any, dict[str, Any]]]] = {
    "temperature": (1.0, 0, {"repetition_penalty": 5}),
    "top_p": (1.0, 0.01, {}),
    "top_k": (-1, 1, {}),
    "min_p": (0, 1, {}),
    "typical_p": (1.0, 0.001, {}),
    "repetition_penalty": (1.0, 5, {}),
    "presence_penalty": (0, 2, {}),
    "frequency_penalty": (0, 2, {}),
    "logit_bias": ({}, {str(token): -100 for token in range(300)}, {}),
    "stop": ([], ["e"], {}),
    "stop_token_ids": ([], list(range(100)), {}),
    "bad_words": ([], ["e", "a", "the", "sea"], {"logit_bias": {}}),
    "no_repeat_ngram_size": (0, 1, {}),
    "watermark": (False, True, {}),
    "include_stop_str_in_output": (False, True, {"stop": ["e", "a"]}),
    "ignore_eos": (False, True, {"temperature": 0, "max_tokens": 60}),
    "min_tokens": (0, 60, {"temperature": 0, "max_tokens": 60}),
    "skip_special_tokens": (True, False, {"temperature": 0, "ignore_eos": True, "max_tokens": 60}),
    "response_format": ({"type": "text"}, {"type": "json_object"}, {}),
}

# OpenAI's word for the end of an answer, which other protocols share.
ENDS = [
    (FinishReason.EOS, "stop"),
    (FinishReason.STOP, "stop"),
    (FinishReason.LENGTH, "length"),
    (FinishReason.CONTEXT, "length"),
    (FinishReason.ABORT, "stop"),
    (FinishReason.TOOL_CALLS, "tool_calls"),
]
