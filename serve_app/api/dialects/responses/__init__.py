"""OpenAI's Responses API: items in, items out; nothing of a response is kept."""
