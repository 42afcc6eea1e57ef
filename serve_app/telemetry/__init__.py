"""Metrics and log lines of a gateway, a replica and the control plane."""

from serve_app.telemetry.absent import UNKNOWN, EntityName
from serve_app.telemetry.answer_counts import AnswerCounts
from serve_app.telemetry.logs import JsonFormatter, log_request
from serve_app.telemetry.metrics import CONTENT_TYPE, Metrics, Timings
