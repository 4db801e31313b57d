"""Rewriting that every target needs: Metal source becomes C++ by edits on exact ranges of the syntax tree."""
