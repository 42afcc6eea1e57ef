"""Which parts of a client's JSON Schema a grammar can enforce. Independent of grammars and requests."""

from serve_app.json_schema.adapting import Adapted, adapt
from serve_app.json_schema.faults import narrowed
from serve_app.json_schema.references import References
from serve_app.json_schema.vocabulary import COMPACT, SPACE, UnusableSchema, place
