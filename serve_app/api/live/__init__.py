"""What happens now, as one gateway sees it and as all of them do."""
