"""The usage ledger: one row for each admitted request, what keys have spent, and reports of both."""
