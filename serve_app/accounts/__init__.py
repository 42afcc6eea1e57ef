"""Who may call, and how usage is recorded: keys, budgets, the usage journal. Uses neither HTTP nor Ray."""
