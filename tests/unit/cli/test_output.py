"""Tables, numbers, and text that cannot steer a terminal."""

import pytest
import yaml

from serve_app.cli.output import number, print_table, printable, rounded_down


def lines(captured) -> list[str]:
    return [line.rstrip() for line in captured.readouterr().out.splitlines()]


def test_columns_are_as_wide_as_their_widest_cell(capsys):
    print_table(["a", "num"], [["longer", "1"], ["x", "1,000"]], right=["num"])
    assert lines(capsys) == ["A         NUM", "longer      1", "x       1,000"]


def test_a_wide_character_takes_the_columns_that_terminals_give_it(capsys):
    print_table(["a", "b"], [["日本", "1"], ["abcd", "2"]])
    assert lines(capsys) == ["A     B", "日本  1", "abcd  2"]


def test_outside_a_terminal_a_row_is_one_line_without_styles(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    print_table(["a", "b"], [["x" * 300, "[bold]y[/bold]"]])
    assert lines(capsys)[1] == "x" * 300 + "  [bold]y[/bold]"


def test_a_cell_cannot_break_its_line(capsys):
    print_table(["a"], [["x\ny\x1b[2Jz"]])
    assert lines(capsys) == ["A", "xy[2Jz"]


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
