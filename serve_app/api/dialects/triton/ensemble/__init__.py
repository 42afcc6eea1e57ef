"""The steps of Triton's text ensemble: preprocessing and postprocessing."""
