"""LoRA adapters of one replica: which are loaded, and how they are loaded."""
