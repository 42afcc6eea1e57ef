"""MindIE: chat, generate and generate_stream."""
