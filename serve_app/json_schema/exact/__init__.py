"""Schemas whose numbers the parser of schemas would change, as grammars in its other notation."""

from serve_app.json_schema.exact.notation import expression, lark, with_options
