"""The paths below /v2, which Triton and MindIE share."""
