"""OpenAI's API, below /v1."""
