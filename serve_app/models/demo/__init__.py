"""Small models of our own, one per folder, so that a first run needs no download; `recipe` makes them."""
