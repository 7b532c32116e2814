"""What all tests share."""

import os

# Unbuffered output is written word by word, and a launcher may then put the words of two ranks on one line.
os.environ.pop("PYTHONUNBUFFERED", None)
