"""Who may call, and how usage is recorded: API keys, budgets, the usage journal. Uses no HTTP, no Ray."""
