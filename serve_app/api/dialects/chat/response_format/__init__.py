"""The fields that determine the form of an answer: `response_format`, `guided_*`, `structured_outputs`."""
