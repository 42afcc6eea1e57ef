"""Anthropic's Messages API: blocks of content in, blocks of content out."""
