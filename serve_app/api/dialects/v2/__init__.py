"""The paths below /v2 at which Triton and MindIE meet: each body tells whose it is."""
