"""Tables, numbers, and text that cannot steer a terminal."""

import pytest
import yaml

from serve_app.cli.output import number, printable, rounded_down, table


def test_columns_are_as_wide_as_their_widest_cell():
    assert table(["a", "num"], [["longer", "1"], ["x", "1,000"]], right=["num"]) == (
        "A         NUM\nlonger      1\nx       1,000"
    )


def test_a_cell_cannot_break_its_line():
    assert table(["a"], [["x\ny\x1b[2Jz"]]) == "A\nxy[2Jz"


def test_text_keeps_its_lines_and_loses_escape_sequences():
    assert printable("a\n\tb\x1b]0;t\x07\x9b2Jé") == "a\n\tb]0;t2Jé"


@pytest.mark.parametrize(("value", "text"), [(1234567, "1,234,567"), (0.75, "0.75"), (1e-7, "0"), (2.0, "2")])
def test_numbers_are_for_reading(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (51987.3, "51900"),
        (5841.4, "5840"),
        (7.128, "7.12"),
        (0.04567, "0.0456"),
        (1000.0, "1000"),
        (99.95, "99.9"),
    ],
)
def test_a_figure_to_paste_is_rounded_down_and_yaml(value, text):
    assert rounded_down(value) == text
    assert yaml.safe_load(text) == float(text) <= value
