"""LoRA adapters of one replica: which ones are loaded, and how."""
