"""C++ and CUDA sources of elman; a package so that an installed wheel carries them."""
