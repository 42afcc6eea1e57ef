"""How the demo models were made: their data, training and scores. Not part of the installed package."""
