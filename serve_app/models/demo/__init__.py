"""Small models of our own, a folder each, so that a first run needs no download; `recipe` makes them."""
