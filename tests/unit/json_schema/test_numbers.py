"""Numbers of a schema, to their last digit, with the real parser: as the client wrote them, or refused."""

import json
import random
from decimal import Decimal
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from serve_app.engine.grammar.constraint import LIMITS
from serve_app.engine.grammar.tokenizer import grammar_tokenizer
from serve_app.errors import InvalidField
from serve_app.json_schema import adapt
from serve_app.json_schema.exact.plain import is_plain
from serve_app.json_schema.numerals import dumps, loads, restore
from serve_app.text.answer.grammar import form_of, serialise
from serve_app.types import Grammar, GrammarKind, Numeral
from tests.support.tiny_llama import tiny_tokenizer

SNOWFLAKE = 2**60 + 1
BEYOND = 2**53 + 1
MAX_STEPS = 600


@cache
def tokens() -> LLTokenizer:
    backend = tiny_tokenizer().backend_tokenizer
    size = backend.get_vocab_size()
    return grammar_tokenizer(backend.to_str(), vocab_size=384, own_vocab_size=size, eos_token_ids=[2])


def matcher(schema: str, *, inside: bool = False) -> LLMatcher:
    """The parser of a schema, as a whole answer or as a part of a larger grammar."""
    grammar = Grammar(kind=GrammarKind.SCHEMA, text=schema, space="")
    text = serialise(grammar)
    if inside:
        text = LLMatcher.grammar_from_lark(
            f'%llguidance {{}}\nstart: "<" value ">"\nvalue: {form_of(grammar)}\n'
        )
    made = LLMatcher(tokens(), text, log_level=0, limits=LIMITS)
    assert not made.is_error(), made.get_error()
    return made


def accepts(schema: str, text: str) -> bool:
    found = set()
    for inside in (False, True):
        made = matcher(schema, inside=inside)
        ids = tokens().tokenize_str(f"<{text}>" if inside else text)
        found.add(bool(made.try_consume_tokens(ids) == len(ids) and made.is_accepting()))
    assert len(found) == 1
    return found.pop()


def walk(schema: str, seed: int) -> str | None:
    """A random answer, which ends where it may; None where it became too long."""
    made, rng = matcher(schema), random.Random(seed)
    bits = allocate_token_bitmask(1, tokens().vocab_size)
    said: list[int] = []
    while len(said) < MAX_STEPS:
        fill_next_token_bitmask(made, bits)
        assert not made.is_error(), made.get_error()
        allowed = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))
        if made.is_stopped() or tokens().eos_token in allowed:
            return tokens().decode_str(said)
        said.append(int(rng.choice(allowed)))
        made.consume_token(said[-1])
    return None


MAX_FLOAT32 = "3.4028234663852886e+38"
# schema, texts that it allows, texts that it does not
CASES: dict[str, tuple[str, list[str], list[str]]] = {
    "const": (f'{{"const":{BEYOND}}}', [f"{BEYOND}"], [f"{BEYOND - 1}", f"{BEYOND + 1}"]),
    "enum above 2**63": (
        '{"enum":[18446744073709551615,18446744073709551617]}',
        ["18446744073709551615", "18446744073709551617"],
        ["18446744073709551616", "9223372036854775807"],
    ),
    "17 digits": ('{"const":-122.33207309999999}', ["-122.33207309999999"], ["-122.3320731"]),
    "more than a float": (
        '{"const":0.1234567890123456789}',
        ["0.1234567890123456789"],
        ["0.12345678901234568"],
    ),
    "a long integer with a point": (
        '{"enum":[9007199254740993.0]}',
        ["9007199254740993.0"],
        ["9007199254740992"],
    ),
    "huge and tiny": ('{"enum":[1e300,1e-400,-2e-320]}', ["1e+300", "1e-400", "-2e-320"], ["0", "0.0"]),
    "int64": (
        '{"type":"integer","minimum":-9223372036854775808,"maximum":9223372036854775807}',
        ["-9223372036854775808", "9223372036854775807", "0", "-1", "9223372036854775806"],
        ["-9223372036854775809", "9223372036854775808", "1.0", "99999999999999999999", "01", "-"],
    ),
    "int64, with an exclusive end as Rust writes it": (
        '{"type":"integer","exclusiveMaximum":9223372036854775808}',
        ["9223372036854775807", "-99999999999999999999"],
        ["9223372036854775808"],
    ),
    "uint64": (
        '{"type":"integer","minimum":0,"maximum":18446744073709551615}',
        ["0", "18446744073709551615", "9223372036854775808"],
        ["-1", "18446744073709551616"],
    ),
    "only a lower end": (
        '{"type":"integer","minimum":18446744073709551615}',
        ["18446744073709551615", "20000000000000000000", "100000000000000000000"],
        ["18446744073709551614", "9223372036854775807", "-18446744073709551616"],
    ),
    "only an upper end": (
        '{"type":"integer","maximum":-18446744073709551615}',
        ["-18446744073709551615", "-20000000000000000000"],
        ["-18446744073709551614", "18446744073709551616", "0"],
    ),
    "float32": (
        f'{{"type":"number","minimum":-{MAX_FLOAT32},"maximum":{MAX_FLOAT32}}}',
        [
            "-1.5",
            "0",
            "340282346638528860000000000000000000000",
            "-340282346638528859999999999999999999999.9",
        ],
        ["340282346638528860000000000000000000001", "-340282346638528860000000000000000000000.1", "."],
    ),
    "float64": (
        '{"type":"number","minimum":-1.7976931348623157e308,"exclusiveMaximum":1.7976931348623157e+308}',
        ["-1.5", f"-17976931348623157{'0' * 292}"],
        [f"17976931348623157{'0' * 292}", f"-17976931348623157{'0' * 292}.1"],
    ),
    "tiny ends": (
        '{"type":"number","minimum":5e-324,"maximum":0.1000000000000000055511151231257827}',
        ["0.1", f"0.{'0' * 323}5", "0.1000000000000000055511151231257827"],
        ["0", "0.0", f"0.{'0' * 323}4", "0.1000000000000000055511151231257828", "0.2", "1"],
    ),
    "ends of many digits": (
        '{"type":"number","exclusiveMinimum":1.0000000000000000001,"maximum":1.0000000000000000003}',
        ["1.0000000000000000002", "1.00000000000000000011", "1.00000000000000000030"],
        ["1", "1.0000000000000000001", "1.00000000000000000010", "1.00000000000000000031", "2"],
    ),
    "a number or a string": (
        f'{{"type":["integer","string","null"],"minimum":{BEYOND},"maxLength":1}}',
        [f"{BEYOND}", '"a"', "null"],
        [f"{BEYOND - 1}", '"ab"', "true", "[]"],
    ),
    "as pydantic writes an optional one": (
        f'{{"anyOf":[{{"type":"integer","minimum":{BEYOND}}},{{"type":"null"}}],"default":null,"title":"X"}}',
        [f"{BEYOND}", "null"],
        [f"{BEYOND - 1}", '""'],
    ),
    "bounds that meet": (
        f'{{"type":"number","allOf":[{{"minimum":{BEYOND}}},'
        f'{{"type":"integer","exclusiveMaximum":{BEYOND + 2}}}]}}',
        [f"{BEYOND}", f"{BEYOND + 1}"],
        [f"{BEYOND - 1}", f"{BEYOND + 2}", f"{BEYOND}.5"],
    ),
    "multiples of a power of ten": (
        f'{{"type":"number","multipleOf":0.01,"minimum":{BEYOND}}}',
        [f"{BEYOND}.05", f"{BEYOND}.050", f"{BEYOND + 7}"],
        [f"{BEYOND}.005", f"{BEYOND - 1}"],
    ),
    "multiples of a large power of ten": (
        '{"type":"integer","multipleOf":100000000000000000000}',
        ["0", "-300000000000000000000"],
        ["10000000000000000000", "1"],
    ),
    "of a list, those within the bounds": (
        f'{{"enum":[1,{BEYOND},{BEYOND + 1},"x",null],"minimum":{BEYOND + 1}}}',
        [f"{BEYOND + 1}", '"x"', "null"],
        ["1", f"{BEYOND}"],
    ),
    "lists and objects": (
        f'{{"enum":[{{"id":{SNOWFLAKE}}},[{SNOWFLAKE},1],[]]}}',
        [f'{{"id":{SNOWFLAKE}}}', f"[{SNOWFLAKE},1]", "[]"],
        [f'{{"id":{SNOWFLAKE - 1}}}', f"[{SNOWFLAKE}]", "{}", f'{{"id":{SNOWFLAKE},"x":1}}'],
    ),
    "members, asked for or not": (
        f'{{"type":"object","properties":{{"a":{{"const":{BEYOND}}},"b":{{"type":"boolean"}},"c":{{"const":{SNOWFLAKE}}}}},'
        '"required":["b"]}',
        [f'{{"a":{BEYOND},"b":true,"c":{SNOWFLAKE}}}', '{"b":true}', f'{{"b":false,"c":{SNOWFLAKE}}}'],
        ["{}", f'{{"a":{BEYOND}}}', '{"b":true,"d":1}', f'{{"a":{BEYOND - 1},"b":true}}', '{,"b":true}'],
    ),
    "no member is asked for": (
        f'{{"type":"object","properties":{{"a":{{"const":{BEYOND}}},"b":{{"const":{SNOWFLAKE}}}}}}}',
        ["{}", f'{{"a":{BEYOND}}}', f'{{"b":{SNOWFLAKE}}}', f'{{"a":{BEYOND},"b":{SNOWFLAKE}}}'],
        [f'{{"b":{SNOWFLAKE},"a":{BEYOND}}}', "{,}", f'{{"a":{BEYOND},}}'],
    ),
    "a map": (
        f'{{"type":"object","properties":{{"n\\"":{{}}}},"additionalProperties":{{"enum":[{SNOWFLAKE}]}},'
        '"minProperties":0}',
        ["{}", f'{{"x":{SNOWFLAKE}}}', f'{{"n\\"":7,"ü":{SNOWFLAKE},"z":{SNOWFLAKE}}}'],
        ['{"x":1}', f'{{"x":{SNOWFLAKE},"n\\"":7}}'],
    ),
    "a map of one or two": (
        f'{{"type":"object","additionalProperties":{{"const":{SNOWFLAKE}}},"minProperties":1,"maxProperties":2}}',
        [f'{{"x":{SNOWFLAKE}}}', f'{{"x":{SNOWFLAKE},"y":{SNOWFLAKE}}}'],
        ["{}", f'{{"x":{SNOWFLAKE},"y":{SNOWFLAKE},"z":{SNOWFLAKE}}}'],
    ),
    "items": (
        f'{{"type":"array","items":{{"const":{SNOWFLAKE}}},"minItems":1,"maxItems":2}}',
        [f"[{SNOWFLAKE}]", f"[{SNOWFLAKE},{SNOWFLAKE}]"],
        ["[]", f"[{SNOWFLAKE},1]", f"[{SNOWFLAKE},{SNOWFLAKE},{SNOWFLAKE}]"],
    ),
    "any number of items": (
        f'{{"items":{{"const":{SNOWFLAKE}}}}}',
        ["[]", f"[{SNOWFLAKE},{SNOWFLAKE},{SNOWFLAKE}]", '"x"', "{}"],
        ["[1]", f"[{SNOWFLAKE},]"],
    ),
    "first items and the rest": (
        f'{{"type":"array","prefixItems":[{{"const":{BEYOND}}},{{"type":"null"}}],"items":{{"const":{SNOWFLAKE}}},"minItems":1}}',
        [f"[{BEYOND}]", f"[{BEYOND},null]", f"[{BEYOND},null,{SNOWFLAKE},{SNOWFLAKE}]"],
        ["[]", "[null]", f"[{BEYOND},{SNOWFLAKE}]", f"[{BEYOND},null,1]"],
    ),
    "first items alone": (
        f'{{"type":"array","items":[{{"const":{BEYOND}}},{{"type":"null"}}],"additionalItems":false,"maxItems":1}}',
        ["[]", f"[{BEYOND}]"],
        [f"[{BEYOND},null]", "[null]"],
    ),
    "a tree of references": (
        f'{{"$ref":"#/$defs/n","$defs":{{"n":{{"type":"object","properties":{{"id":{{"const":{SNOWFLAKE}}},'
        '"next":{"$ref":"#/$defs/n"},"note":{"$ref":"#/$defs/s"}},"required":["id"]},"s":{"type":"string"}}}',
        [f'{{"id":{SNOWFLAKE},"next":{{"id":{SNOWFLAKE},"note":"x"}}}}'],
        [f'{{"id":{SNOWFLAKE},"next":{{"id":1}}}}', f'{{"id":{SNOWFLAKE},"note":1}}'],
    ),
    "objects that are combined": (
        f'{{"allOf":[{{"$ref":"#/$defs/b"}},{{"properties":{{"x":{{"type":"boolean"}},"id":{{"minimum":{BEYOND}}}}},'
        f'"required":["x"]}}],"$defs":{{"b":{{"type":"object","properties":{{"id":{{"type":"integer","maximum":{BEYOND}}}}},'
        '"required":["id"]}}}',
        [f'{{"id":{BEYOND},"x":true}}'],
        [f'{{"id":{BEYOND}}}', f'{{"id":{BEYOND - 1},"x":true}}', f'{{"id":{BEYOND + 1},"x":true}}'],
    ),
    "one of two objects": (
        '{"type":"object","oneOf":['
        f'{{"type":"object","properties":{{"k":{{"const":"a"}},"v":{{"const":{SNOWFLAKE}}}}},"required":["k","v"]}},'
        '{"type":"object","properties":{"k":{"const":"b"},"v":{"type":"string"}},"required":["k","v"]}]}',
        [f'{{"k":"a","v":{SNOWFLAKE}}}', '{"k":"b","v":"x"}'],
        [f'{{"k":"b","v":{SNOWFLAKE}}}', '{"k":"a","v":"x"}'],
    ),
    "lengths and counts of other types": (
        '{"type":["string","array"],"minLength":1.0,"maxLength":9223372036854775807,'
        '"maxItems":18446744073709551615,"minItems":2.0}',
        ['"x"', "[1,2]"],
        ['""', "[1]"],
    ),
    "plain numbers stay with the parser": (
        '{"enum":[1,2.5,9007199254740991],"maximum":1e15}',
        ["1", "2.5"],
        ["9007199254740991", "3"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_number_is_the_clients(name: str) -> None:
    schema, good, bad = CASES[name]
    assert adapt(loads(schema)).lost == ()
    assert [text for text in good if not accepts(schema, text)] == []
    assert [text for text in bad if accepts(schema, text)] == []


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ('{"properties":{"a":{"const":1e-401}}}', "$.properties.a"),
        (f'{{"properties":{{"a":{{"maximum":{"9" * 401}}}}}}}', "$.properties.a"),
        (f'{{"items":{{"multipleOf":7,"minimum":{BEYOND}}}}}', "$.items.multipleOf"),
        ('{"allOf":[{"multipleOf":65536},{"multipleOf":65537}]}', "$.multipleOf"),
        (f'{{"patternProperties":{{"^x":{{"const":{BEYOND}}}}}}}', "$.patternProperties"),
        (f'{{"type":"integer","minimum":{BEYOND},"maximum":{BEYOND - 1}}}', "no value"),
    ],
)
def test_what_cannot_be_exact_is_refused_with_its_place(schema: str, place: str) -> None:
    with pytest.raises(InvalidField) as caught:
        serialise(Grammar(kind=GrammarKind.SCHEMA, text=schema))
    assert place in caught.value.reason


def test_multiples_that_nothing_counts_are_named() -> None:
    assert adapt({"properties": {"a": {"type": "number", "multipleOf": 0.07}}}).lost == (
        "properties.a.multipleOf",
    )
    assert adapt({"multipleOf": 0.01}).lost == adapt({"multipleOf": 4}).lost == ()


def test_json_keeps_numbers_that_a_float_does_not() -> None:
    text = '{"a":[0.1234567890123456789,0.5,1e-400],"b":{"c":18446744073709551617,"d":-0.0,"e":1.50}}'
    value = loads(text)
    assert isinstance(value["a"][0], Numeral)
    assert value["a"][0] == 0.1234567890123456789
    assert type(value["a"][1]) is float
    assert dumps(value) == text.replace("1.50", "1.5")
    assert dumps(restore(json.loads(text), value)) == dumps(value)
    with pytest.raises(ValueError, match="JSON"):
        dumps([float("inf"), value])


# Integers around powers of two and ten, and decimals of any length.
WHOLE = st.one_of(
    st.integers(-(2**70), 2**70),
    st.builds(
        lambda power, sign, near: sign * 2**power + near,
        st.integers(50, 70),
        st.sampled_from((1, -1)),
        st.integers(-2, 2),
    ),
)
DECIMAL = st.builds(
    lambda whole, part, exponent: f"{whole}.{part}{exponent}",
    WHOLE,
    st.text("0123456789", min_size=1, max_size=20),
    st.sampled_from(["", "", "e-3", "E+5", "e-25", "e30"]),
)
TEXT = st.one_of(WHOLE.map(str), DECIMAL)
PLACES = (
    "{}",
    '{{"type":"object","properties":{{"a":{}}},"required":["a"]}}',
    '{{"type":"array","items":{},"minItems":1,"maxItems":1}}',
    '{{"type":"array","prefixItems":[{{"$ref":"#/$defs/n"}}],"items":false,"minItems":1,"$defs":{{"n":{}}}}}',
    '{{"type":"object","properties":{{"a":{{"description":"x","allOf":[{}]}}}},"required":["a"]}}',
)


def number_of(answer: str) -> str:
    return answer.strip('{}[]"a:')


@given(st.lists(TEXT, min_size=1, max_size=4), st.sampled_from(PLACES), st.integers(0, 2**16))
def test_a_listed_number_is_never_another_one(listed: list[str], place: str, seed: int) -> None:
    schema = place.format(f'{{"enum":[{",".join(listed)}]}}')
    answer = walk(schema, seed)
    assert answer is not None
    assert Decimal(number_of(answer)) in set(map(Decimal, listed))


@given(
    st.lists(TEXT, min_size=2, max_size=2).map(lambda ends: sorted(ends, key=Decimal)),
    st.sampled_from(PLACES),
    st.booleans(),
    st.integers(0, 2**16),
)
def test_no_answer_leaves_its_bounds(ends: list[str], place: str, integer: bool, seed: int) -> None:
    low, high = map(Decimal, ends)
    kind = "integer" if integer else "number"
    if low == high or (integer and high - low < 1):
        return
    schema = f'{{"type":"{kind}","minimum":{ends[0]},"exclusiveMaximum":{ends[1]}}}'
    answer = walk(place.format(schema), seed)
    if answer is not None:
        assert low <= Decimal(number_of(answer)) < high
        assert not (integer and "." in answer)
    if not integer and not all(is_plain(loads(end)) for end in ends):
        assert accepts(schema, format(low, "f"))
        assert not accepts(schema, format(high, "f"))
