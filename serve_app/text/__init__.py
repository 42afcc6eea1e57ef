"""Text <-> token ids: tokenising, templates, detokenising, stop strings. Uses no engine, HTTP or Ray."""
