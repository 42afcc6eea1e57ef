"""Who may call, and how usage is recorded: API keys, budgets, the usage journal. Free of HTTP and Ray."""
