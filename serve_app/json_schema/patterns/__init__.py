"""ECMA-262 patterns, as used in JSON Schema, translated to the parser's regular expressions."""

from serve_app.json_schema.patterns.overlap import Overlaps
from serve_app.json_schema.patterns.reading import PatternError
from serve_app.json_schema.patterns.writing import Translation, translate
