"""Classes of characters. Characters about which dialects disagree are left out.

`\\d`, `\\w` and `\\s` cover ASCII alone in one dialect, and Unicode in another. A class is written as the
characters that belong to it in all dialects, so that a client's own engine agrees.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from serve_app.json_schema.patterns.tree import Chars, Range

LINE_ENDS: Final[tuple[Range, ...]] = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
_SURROGATES: Final = (0xD800, 0xDFFF)  # not characters of a text
_SPACE: Final = r"\t-\r\x{20}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
_ANY_SPACE: Final = _SPACE + r"\x{1c}-\x{1f}\x{85}\x{feff}"
_WORD: Final = "0-9A-Za-z_"
_ANY_WORD: Final = r"\p{Alphabetic}\p{M}\p{N}\p{Pc}\p{Join_Control}"
# class -> the characters that certainly belong to it, and those that may belong to it
_CLASSES: Final[dict[str, tuple[str, str]]] = {
    "d": ("0-9", r"\p{Nd}"),
    "D": (r"\P{Nd}", "[^0-9]"),
    "w": (_WORD, _ANY_WORD),
    "W": (f"[^{_ANY_WORD}]", f"[^{_WORD}]"),
    "s": (_SPACE, _ANY_SPACE),
    "S": (f"[^{_ANY_SPACE}]", f"[^{_SPACE}]"),
}
_CATEGORIES: Final = (  # noqa: SIM905 - a name a line would hide the table
    "L Letter LC Cased_Letter Lu Uppercase_Letter Ll Lowercase_Letter Lt Titlecase_Letter Lm "
    "Modifier_Letter Lo Other_Letter M Mark Mn Nonspacing_Mark Mc Spacing_Mark Me Enclosing_Mark N "
    "Number Nd Decimal_Number Nl Letter_Number No Other_Number P Punctuation Pc Connector_Punctuation "
    "Pd Dash_Punctuation Ps Open_Punctuation Pe Close_Punctuation Pi Initial_Punctuation Pf "
    "Final_Punctuation Po Other_Punctuation S Symbol Sm Math_Symbol Sc Currency_Symbol Sk "
    "Modifier_Symbol So Other_Symbol Z Separator Zs Space_Separator Zl Line_Separator Zp "
    "Paragraph_Separator C Other Cc Control Cf Format Co Private_Use"
).split()
_PROPERTIES: Final = (  # noqa: SIM905 - a name a line would hide the table
    "Any ASCII Alphabetic Alpha Lowercase Lower Uppercase Upper White_Space space Emoji "
    "Emoji_Presentation Emoji_Modifier Emoji_Modifier_Base Emoji_Component Extended_Pictographic "
    "ID_Start ID_Continue XID_Start XID_Continue Ideographic Dash Hex_Digit ASCII_Hex_Digit Math "
    "Diacritic Cased Default_Ignorable_Code_Point"
).split()
_SCRIPTS: Final = (  # noqa: SIM905 - a name a line would hide the table
    "Latin Latn Greek Grek Cyrillic Cyrl Armenian Armn Hebrew Hebr Arabic Arab Syriac Syrc Thaana Thaa "
    "Devanagari Deva Bengali Beng Gurmukhi Guru Gujarati Gujr Oriya Orya Tamil Taml Telugu Telu Kannada "
    "Knda Malayalam Mlym Sinhala Sinh Thai Lao Laoo Tibetan Tibt Myanmar Mymr Georgian Geor Hangul Hang "
    "Ethiopic Ethi Cherokee Cher Khmer Khmr Mongolian Mong Hiragana Hira Katakana Kana Bopomofo Bopo "
    "Han Hani Yi Yiii Common Zyyy Inherited Zinh"
).split()
# What is allowed in `\p{...}`.
NAMES: Final = frozenset(
    {
        *_CATEGORIES,
        *_PROPERTIES,
        *(f"{key}={name}" for key in ("gc", "General_Category") for name in _CATEGORIES),
        *(f"{key}={name}" for key in ("sc", "Script", "scx", "Script_Extensions") for name in _SCRIPTS),
    }
)


def write(chars: Chars) -> str:
    """The set as the parser reads it."""
    maybe = chars.negated  # so that what is left out of `\w` is not let in by `[^\w]`
    classes = (_CLASSES[name][maybe] if name in _CLASSES else f"\\{name}" for name in chars.classes)
    inside = "".join([*map(range_of, _scalars(chars.ranges)), *classes])
    if len(inside) == 1 and not chars.negated:
        text = inside
    elif not inside:
        text = r"[\x{0}-\x{10ffff}]" if chars.negated else r"[^\x{0}-\x{10ffff}]"
    else:
        text = f"[^{inside}]" if chars.negated else f"[{inside}]"
    return f"(?i:{text})" if chars.fold else text


def range_of(chars: Range) -> str:
    low, high = chars
    return char_of(low) if low == high else f"{char_of(low)}-{char_of(high)}"


def char_of(code: int) -> str:
    """A character as written in a regex."""
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\x{{{code:x}}}"


def _scalars(ranges: Iterable[Range]) -> list[Range]:
    """`ranges` without surrogates."""
    first, last = _SURROGATES
    parts = (
        part for low, high in ranges for part in ((low, min(high, first - 1)), (max(low, last + 1), high))
    )
    return [(low, high) for low, high in dict.fromkeys(parts) if low <= high]
