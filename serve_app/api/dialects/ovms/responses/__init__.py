"""POST /v3/responses of OpenVINO Model Server: OpenAI's items and events with its own fields and members."""
