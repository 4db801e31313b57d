"""The version of metalops. setup.py reads it from here."""

VERSION = "0.1.0"
