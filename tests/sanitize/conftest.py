"""The helpers of this folder are imported by their names."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
