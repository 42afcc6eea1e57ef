"""OpenAI's Responses API: items in, items out; a response may be kept for later requests."""
