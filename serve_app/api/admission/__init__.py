"""The gateway's limits on concurrent work, and each request's use of its caller's budgets."""
