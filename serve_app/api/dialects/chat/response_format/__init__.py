"""The fields that say what form an answer has: `response_format`, `guided_*`, `structured_outputs`."""
