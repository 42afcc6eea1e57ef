"""OpenVINO Model Server, below /v3."""
