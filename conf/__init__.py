"""Configuration files of elman; a package so that Hydra finds them in an installed wheel."""
