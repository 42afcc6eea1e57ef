"""Patterns of ECMA-262, as JSON Schema has them, in the notation of the parser's regular expressions."""

from serve_app.json_schema.patterns.overlap import Overlaps
from serve_app.json_schema.patterns.reading import PatternError
from serve_app.json_schema.patterns.writing import Translation, translate
