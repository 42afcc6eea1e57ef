"""The path below /v1 at which OpenAI's protocol and MindIE's meet: the endpoint may tell whose it is."""
