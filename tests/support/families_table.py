"""Prints the table of families in docs/models.md, or the rows of the families that it is given."""

from __future__ import annotations

import sys

from tests.support.families import families, judge_apart, table_row

if __name__ == "__main__":
    for family in sys.argv[1:] or families():
        print(table_row(judge_apart(family)), flush=True)
