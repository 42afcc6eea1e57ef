"""JSON Schemas as clients send them: what of them a grammar can enforce. Knows no grammar, no request."""

from serve_app.json_schema.adapting import Adapted, adapt
from serve_app.json_schema.spacing import COMPACT, SPACE
from serve_app.json_schema.vocabulary import UnusableSchema

__all__ = ["COMPACT", "SPACE", "Adapted", "UnusableSchema", "adapt"]
