"""Text <-> token ids: tokenising, templates, detokenising, stop strings. Knows no engine, HTTP or Ray."""
