"""Who may call, and what is used: API keys, budgets, the usage journal. Knows no HTTP and no Ray."""
