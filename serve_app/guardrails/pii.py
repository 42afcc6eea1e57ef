"""Finds personal data in a short text, by rules with check digits and by the package phonenumbers.

Covered: e-mail addresses, payment cards (Luhn), IBANs (length and check digits), American social security
numbers, telephone numbers with a country code or of the given regions, American bank account numbers
after a word such as "account". Not covered: names, addresses, dates; anything spelt out or disguised.
Does not deal with streams.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

MAX_MATCH_CHARS: Final = 254  # of an e-mail address (RFC 5321), the longest of all
CONTEXT_CHARS: Final = 64  # before a number; a word in them may say what the number is


class Kind(StrEnum):
    """What was found, in the words of Databricks' masks; if several rules match, the first kind wins."""

    EMAIL_ADDRESS = "EMAIL_ADDRESS"
    CREDIT_CARD = "CREDIT_CARD"
    IBAN_CODE = "IBAN_CODE"
    US_SSN = "US_SSN"
    PHONE_NUMBER = "PHONE_NUMBER"
    US_BANK_NUMBER = "US_BANK_NUMBER"

    @property
    def mask(self) -> str:
        """The text that replaces personal data of this kind."""
        return f"<{self}>"


@dataclass(frozen=True, slots=True)
class Span:
    """Characters `start` to `end` (not included) of a text."""

    start: int
    end: int
    kind: Kind


# Quotes, slashes and braces stand around addresses more often than in them.
_DOMAIN: Final = re.compile(r"@(?:[\w-]{1,63}\.){1,8}\w{2,63}")
_EMAIL: Final = re.compile(r"[\w%+-][\w.!#$%*+^~'-]{0,63}" + _DOMAIN.pattern)
_CARDS: Final = tuple(
    re.compile(rf"(?<!\d)(?=([2-6]{rest})(?!\d))")
    for rest in (
        r"\d{12,18}",
        r"\d{3}([ \u00a0-])\d{4}\2\d{4}\2\d{4}",
        r"\d{3}([ \u00a0-])\d{4}\2\d{4}\2\d{4}\2\d{3}",
        r"\d{3}([ \u00a0-])\d{6}\2\d{4,5}",
    )
)
# A dash before or after may belong to a list; a dash next to a digit makes another number.
_SSN: Final = re.compile(
    r"(?<!\w)(?<!\d-)(?!000|666|9)\d{3}([ \u00a0.-])(?!00)\d{2}\1(?!0000)\d{4}(?!\w|-\d)"
)
_BARE_SSN: Final = re.compile(r"(?<!\w)(?!000|666|9)\d{3}(?!00)\d{2}(?!0000)\d{4}(?!\w)")
_SSN_WORD: Final = re.compile(r"\b(?:ssns?|social security)\b", re.I)
_ACCOUNT: Final = re.compile(r"(?<!\w)\d{8,17}(?!\w)")
_ACCOUNT_WORD: Final = re.compile(
    r"\b(?:accounts?|acct|a/c|bank|banking|checking|savings?|routing|debit)\b", re.I
)
_IBAN: Final = re.compile(r"(?<![A-Za-z0-9])(?=([A-Z]{2}\d{2}(?:[ \u00a0-]?[A-Z0-9]){11,30}))", re.I)
_PHONE_DIGITS: Final = 7  # of the shortest number that is looked for

# Characters of an IBAN by country (the registry of ISO 13616).
_IBAN_CHARS: Final = MappingProxyType(
    {
        country: chars
        for chars, countries in {
            15: "NO",
            16: "BE",
            18: "DK FI FO GL NL SD FK",
            19: "MK SI",
            20: "AT BA EE KZ LT LU XK MN",
            21: "CH CR HR LI LV",
            22: "BG BH DE GB GE IE ME RS VA",
            23: "AE GI IL IQ OM TL SO",
            24: "AD CZ ES MD PK RO SA SE SK TN VG",
            25: "LY PT ST",
            26: "IS TR",
            27: "BI DJ FR GR IT MC MR SM",
            28: "AL AZ BY CY DO GT HN HU LB NI PL SV",
            29: "BR EG PS QA UA",
            30: "JO KW MU YE",
            31: "MT SC",
            32: "LC",
            33: "RU",
        }.items()
        for country in countries.split()
    }
)


class PiiFinder:
    """Finds personal data. The settings are the regions whose telephone numbers need no country code."""

    def __init__(self, phone_regions: Sequence[str] = ("US",)) -> None:
        from phonenumbers import PhoneNumberMatcher  # an extra; endpoints without these rules need none

        self._matcher = PhoneNumberMatcher
        self._regions = (None, *phone_regions)

    def find(self, text: str, before: str = "") -> list[Span]:
        """The spans of `text` with personal data, in order and without overlaps.

        `before`: the text before `text`, whose words are used only to tell what a number means. Meant for
        texts of a few hundred characters: the time may grow with the square of the length.
        """
        found: list[Span] = []
        if "@" in text:
            found += _emails(text)
        if sum(map(str.isdigit, text)) >= _PHONE_DIGITS:
            found += [*_cards(text), *_ibans(text), *_ssns(text, before)]
            found += self._phones(text)
            found += _accounts(text, before)
        return found if len(found) < 2 else _joined(found)

    def _phones(self, text: str) -> Iterator[Span]:
        for region in self._regions:
            for match in self._matcher(text, region):
                yield Span(match.start, match.end, Kind.PHONE_NUMBER)


def _emails(text: str) -> Iterator[Span]:
    for match in _EMAIL.finditer(text):
        if match.end() - match.start() <= MAX_MATCH_CHARS:
            yield Span(match.start(), match.end(), Kind.EMAIL_ADDRESS)
        # If two addresses have no space between them, the first takes all that precedes the second @.
        end = match.end()
        while (domain := _DOMAIN.match(text, end)) is not None:
            yield Span(end, domain.end(), Kind.EMAIL_ADDRESS)
            end = domain.end()


def _cards(text: str) -> Iterator[Span]:
    for rule in _CARDS:
        for match in rule.finditer(text):
            if _passes_luhn([int(each) for each in match[1] if each.isdigit()]):
                yield Span(match.start(1), match.end(1), Kind.CREDIT_CARD)


def _ibans(text: str) -> Iterator[Span]:
    for match in _IBAN.finditer(text):
        chars = _IBAN_CHARS.get(match[1][:2].upper())
        if chars is None:
            continue
        code, end = "", match.start(1)
        while end < match.end(1) and len(code) < chars:
            code += text[end].upper() if text[end] not in " \u00a0-" else ""
            end += 1
        ends_here = end == len(text) or not text[end].isalnum()
        if len(code) == chars and ends_here and _passes_mod_97(code):
            yield Span(match.start(1), end, Kind.IBAN_CODE)


def _ssns(text: str, before: str) -> Iterator[Span]:
    for match in _SSN.finditer(text):
        yield Span(match.start(), match.end(), Kind.US_SSN)
    for match in _BARE_SSN.finditer(text):
        if _SSN_WORD.search(_words_before(text, match.start(), before)):
            yield Span(match.start(), match.end(), Kind.US_SSN)


def _accounts(text: str, before: str) -> Iterator[Span]:
    for match in _ACCOUNT.finditer(text):
        if _ACCOUNT_WORD.search(_words_before(text, match.start(), before)):
            yield Span(match.start(), match.end(), Kind.US_BANK_NUMBER)


def _words_before(text: str, start: int, before: str) -> str:
    return (before + text[:start])[-CONTEXT_CHARS:]


def _passes_luhn(digits: list[int]) -> bool:
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0 and len(set(digits)) > 1


def _passes_mod_97(code: str) -> bool:
    return int("".join(str(int(each, 36)) for each in code[4:] + code[:4])) % 97 == 1


def _joined(found: list[Span]) -> list[Span]:
    """Merge overlapping spans into one span, of the kind that comes first in `Kind`."""
    rank = {kind: place for place, kind in enumerate(Kind)}
    spans: list[Span] = []
    for span in sorted(found, key=lambda each: (each.start, each.end)):
        if spans and span.start < spans[-1].end:
            last = spans.pop()
            kind = min(last.kind, span.kind, key=rank.__getitem__)
            span = Span(last.start, max(last.end, span.end), kind)
        spans.append(span)
    return spans
