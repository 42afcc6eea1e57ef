"""How much the gateway takes on at once, and what each request takes from its caller's budgets."""
