"""Guardrails around one exchange: prompts before they reach a model, answers before they reach a client."""
