"""Engine outputs of one request -> the text deltas that its client gets."""
