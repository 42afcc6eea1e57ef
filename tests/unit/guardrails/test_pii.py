"""What counts as personal data, rule by rule, and beside presidio's own rules."""

from __future__ import annotations

import pytest

from serve_app.guardrails.pii import Kind, PiiFinder
from serve_app.guardrails.text_filter import masked

FINDER = PiiFinder()
FOUND = [
    ("mail a.b@example.com, or 'c@d.io'.", [Kind.EMAIL_ADDRESS, Kind.EMAIL_ADDRESS]),
    ("https://x.org/?mail=a@b.com&k=1", [Kind.EMAIL_ADDRESS]),
    ("card 4111 1111 1111 1111", [Kind.CREDIT_CARD]),
    ("amex 3782 822463 10005 and 5500000000000004", [Kind.CREDIT_CARD, Kind.CREDIT_CARD]),
    ("iban de89 3704 0044 0532 0130 00.", [Kind.IBAN_CODE]),
    ("ssn 219-09-9999", [Kind.US_SSN]),
    ("-219-09-9999, 219-09-9999-", [Kind.US_SSN, Kind.US_SSN]),
    ("4111\u00a01111\u00a01111\u00a01111 219\u00a009\u00a09999", [Kind.CREDIT_CARD, Kind.US_SSN]),
    ("DE89\u00a03704\u00a00044\u00a00532\u00a00130\u00a000", [Kind.IBAN_CODE]),
    ("my social security number is 219099999", [Kind.US_SSN]),
    ("call (212) 555-0134 or +44 20 7946 0958", [Kind.PHONE_NUMBER, Kind.PHONE_NUMBER]),
    ("bank account: 000123456789", [Kind.US_BANK_NUMBER]),
    ('{"mail":"a@b.com","card":4111111111111111}', [Kind.EMAIL_ADDRESS, Kind.CREDIT_CARD]),
    ("电话+8613812345678，邮箱a@b.com谢谢", [Kind.PHONE_NUMBER, Kind.EMAIL_ADDRESS]),
]
PART_OF_A_NUMBER = "7-219-09-9999, 219-09-9999-7"
NOT_FOUND = [
    "card 4111 1111 1111 1112",  # a wrong check digit
    "DE89 3704 0044 0532 0130 01",
    PART_OF_A_NUMBER,
    "ssn 000-12-3456, 666-12-3456, 219-00-9999",
    "on 2024-05-06 at 12:30:45, pi is 3.14159265358979",
    "192.168.100.200:8080, v1.2.3.4, 1700000000 s",
    "123e4567-e89b-12d3-a456-426614174000",
    "the number 000123456789",  # without a word that says what it is
    "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20",
    "user@host, @name, a@b",
]


@pytest.mark.parametrize(("text", "kinds"), FOUND)
def test_personal_data_is_found(text: str, kinds: list[Kind]) -> None:
    whole = masked(text, FINDER)
    assert sorted(kinds) == sorted(kind for kind in Kind for _ in range(whole.count(kind.mask)))


@pytest.mark.parametrize("text", NOT_FOUND)
def test_what_only_looks_like_it_is_left_alone(text: str) -> None:
    assert masked(text, FINDER) == text


def test_regions_tell_which_numbers_need_no_country_code() -> None:
    assert masked("030 901820", FINDER) == "030 901820"
    assert masked("030 901820", PiiFinder(["DE"])) == Kind.PHONE_NUMBER.mask


@pytest.mark.full  # presidio takes seconds to load
def test_what_presidio_is_sure_of_is_found() -> None:
    from presidio_analyzer import predefined_recognizers as presidio

    rules = [
        (presidio.EmailRecognizer(), "EMAIL_ADDRESS"),
        (presidio.CreditCardRecognizer(), "CREDIT_CARD"),
        (presidio.IbanRecognizer(), "IBAN_CODE"),
        (presidio.UsSsnRecognizer(), "US_SSN"),
        (presidio.PhoneRecognizer(supported_regions=["US"]), "PHONE_NUMBER"),
    ]
    compared = 0
    for text in [text for text, _ in FOUND] + NOT_FOUND:
        if text == PART_OF_A_NUMBER:  # which presidio finds, and we leave alone
            continue
        spans = FINDER.find(text)
        for rule, entity in rules:
            for found in rule.analyze(text, [entity], None):
                if found.score >= 0.4:
                    compared += 1
                    assert any(each.start < found.end and found.start < each.end for each in spans), (
                        text,
                        found,
                    )
    assert compared >= 10
