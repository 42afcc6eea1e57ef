"""JSON log lines. No prompt and no key is ever logged."""

from __future__ import annotations

import json
import logging
import time
from typing import Any


class JsonFormatter(logging.Formatter):
    """One JSON object per line. Line breaks and terminal escapes in values stay escaped."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= getattr(record, "fields", {})
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


def log_request(logger: logging.Logger, **fields: str | int | float | None) -> None:
    """One line for one HTTP request; `fields` must contain neither a prompt nor a key."""
    logger.info("request", extra={"fields": fields})
