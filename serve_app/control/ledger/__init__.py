"""The usage ledger: one row for each admitted request, the spending of keys, and reports on both."""
