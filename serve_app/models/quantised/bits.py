"""Codes of a few bits that are packed into words, as the numbers that they are."""

from __future__ import annotations

import math

import torch

from serve_app.models.quantised.share import Along

_WORD = 32


def words_for(count: int, bits: int) -> int:
    """The 32-bit words of `count` codes that are packed without gaps."""
    return -(-count * bits // _WORD)


def in_words(dim: int, bits: int) -> Along:
    """Where such codes lie along a dimension of words."""
    shared = math.gcd(_WORD, bits)
    return Along(dim, _WORD // shared, bits // shared)


def unpack(words: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """int32 words [N, W] -> the first `count` codes of each row, as uint8 [N, count].

    The words of a row are one stream of bits, the lowest bit first; a code may lie in two words.
    """
    rows = words.shape[0]
    if 8 % bits == 0:  # no code lies in two bytes
        data = words.clone(memory_format=torch.contiguous_format).view(torch.uint8)
        parts = [data >> offset & (2**bits - 1) for offset in range(0, 8, bits)]
        return torch.stack(parts, dim=-1).view(rows, -1)[:, :count]
    shared = math.gcd(_WORD, bits)
    # After this many codes, in this many words, a code begins at the start of a word again.
    codes_each, words_each = _WORD // shared, bits // shared
    turns = -(-words.shape[1] // words_each)
    words = torch.nn.functional.pad(words, (0, turns * words_each - words.shape[1]))
    words = words.reshape(rows, turns, words_each)
    codes = torch.empty(rows, turns, codes_each, dtype=torch.uint8, device=words.device)
    for place in range(codes_each):
        word, offset = divmod(place * bits, _WORD)
        here = min(bits, _WORD - offset)  # bits in this word
        code = (words[:, :, word] >> offset) & (2**here - 1)
        if here < bits:
            code |= (words[:, :, word + 1] & (2 ** (bits - here) - 1)) << here
        codes[:, :, place] = code
    return codes.view(rows, turns * codes_each)[:, :count]


def e2m1(device: torch.device) -> torch.Tensor:
    """The values of four-bit floats by their codes [16]: a sign, two bits of an exponent and one more bit."""
    half = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    return torch.tensor((*half, *(-each for each in half)), device=device)


def nibbles(packed: torch.Tensor, *, high_first: bool = False) -> torch.Tensor:
    """uint8 [..., B] -> four-bit codes, as uint8 [..., 2 B]."""
    halves = (packed & 0xF, packed >> 4)
    return torch.stack(halves[::-1] if high_first else halves, dim=-1).flatten(-2)
