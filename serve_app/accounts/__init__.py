"""Who may call: API keys. Knows no HTTP, no engine and no Ray."""
