"""What the vendors' documents allow in the numbers and flags of a body. The one table of it.

A field of a body that is not listed has its usual range.
"""

from __future__ import annotations

from typing import Final

USUAL: Final[dict[str, str]] = {
    "add_generation_prompt": "boolean",
    "batch_size": "integer [1, 2147483647]",
    "best_of": "integer [1, 128]",
    "continue_final_message": "boolean",
    "decoder_input_details": "boolean",
    "details": "boolean",
    "detokenize": "boolean",
    "diversity_penalty": "number [0, 100]",
    "do_sample": "boolean",
    "echo": "boolean",
    "frequency_penalty": "number [-2, 2]",
    "ignore_eos": "boolean",
    "include_reasoning": "boolean",
    "include_stop_str_in_output": "boolean",
    "length_penalty": "number [-10, 10]",
    "logprobs": "boolean",
    "max_completion_tokens": "integer [1, 2147483647]",
    "max_new_tokens": "integer [1, 2147483647]",
    "max_output_tokens": "integer [1, 2147483647]",
    "max_tokens": "integer [1, 2147483647]",
    "max_tool_calls": "integer [1, 2147483647]",
    "min_p": "number [0, 1]",
    "min_tokens": "integer [0, 2147483647]",
    "n": "integer [1, 128]",
    "no_repeat_ngram_size": "integer [0, 64]",
    "num_beam_groups": "integer [1, 64]",
    "parallel_tool_calls": "boolean",
    "perf_stat": "boolean",
    "presence_penalty": "number [-2, 2]",
    "priority": "integer [-4, 4]",
    "prompt_logprobs": "integer [0, 20]",
    "repetition_penalty": "number (0, 100]",
    "return_full_text": "boolean",
    "return_token_ids": "boolean",
    "return_tokens_as_token_ids": "boolean",
    "seed": "integer [-9223372036854775808, 9223372036854775807]",
    "skip_special_tokens": "boolean",
    "spaces_between_special_tokens": "boolean",
    "store": "boolean",
    "stream": "boolean",
    "temperature": "number [0, 2]",
    "thinking_token_budget": "integer [0, 2147483647]",
    "timeout": "number (0, 3600]",
    "top_k": "integer [-1, 2147483647]",
    "top_logprobs": "integer [0, 20]",
    "top_n_tokens": "integer [0, 20]",
    "top_p": "number (0, 1]",
    "truncate": "integer [1, 2147483647]",
    "truncate_prompt_tokens": "integer -1 or [1, 2147483647]",
    "typical_p": "number (0, 1]",
    "use_beam_search": "boolean",
    "use_raw_prompt": "boolean",
    "watermark": "boolean",
}

# schema of the body -> field -> its own range
OWN: Final[dict[str, dict[str, str]]] = {
    "OpenAICompletionBody": {
        "max_tokens": "integer [0, 2147483647]",
        "logprobs": "integer [0, 20]",
    },
    "MessageBody": {
        "max_tokens": "integer [0, 2147483647]",
    },
    "MindIEChatBody": {
        "seed": "integer [1, 18446744073709551615]",
        "priority": "integer [1, 5]",
        "repetition_penalty": "number (0, 2]",
        "temperature": "number (0, 2]",
        "timeout": "number (0, 65535]",
    },
    "Parameters": {
        "seed": "integer [1, 18446744073709551615]",
        "priority": "integer [1, 5]",
        "temperature": "number (0, 3.4e+38]",
        "top_k": "integer [0, 2147483647]",
        "timeout": "integer [1, 65535]",
    },
    "ContinueParameters": {
        "seed": "integer [0, 18446744073709551615]",
        "priority": "integer [1, 5]",
        "temperature": "number (0, 3.4e+38]",
        "top_k": "integer [0, 2147483647]",
        "timeout": "integer [1, 65535]",
    },
    "DatabricksChatBody": {
        "top_k": "integer [1, 2147483647]",
        "repetition_penalty": "number (0, 2]",
    },
    "DatabricksCompletionBody": {
        "top_k": "integer [1, 2147483647]",
        "repetition_penalty": "number (0, 2]",
        "logprobs": "integer [0, 5]",
    },
    "OpenVINOChatBody": {
        "seed": "integer [0, 4294967295]",
    },
    "OpenVINOCompletionBody": {
        "seed": "integer [0, 4294967295]",
        "max_tokens": "integer [0, 2147483647]",
        "logprobs": "integer [0, 20]",
    },
    "OpenVINOResponseBody": {
        "seed": "integer [0, 4294967295]",
    },
}


def range_of(body: str, field: str) -> str:
    """Written as `tests.support.ranges.Range` writes one. KeyError: no vendor documents the field."""
    return OWN.get(body, {}).get(field) or USUAL[field]
