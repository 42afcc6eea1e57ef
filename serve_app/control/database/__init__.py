"""The database of the control plane: its tables, their migrations, and transactions off the event loop."""
