"""A model that embeds: texts in, vectors out."""
