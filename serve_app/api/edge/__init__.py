"""The layers that every request passes before its route: ids, authentication, body, connection, hints."""
