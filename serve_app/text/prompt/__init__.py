"""What a client sends (chat messages, code around a gap) -> the token ids of a prompt."""
