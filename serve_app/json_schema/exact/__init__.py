"""Schemas with numbers that the schema parser would change, as grammars in the parser's other notation."""

from serve_app.json_schema.exact.notation import expression, lark, with_options
