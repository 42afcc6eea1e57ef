"""Text <-> token ids: tokenising, templates, detokenising, stop strings. Free of engine, HTTP and Ray."""
