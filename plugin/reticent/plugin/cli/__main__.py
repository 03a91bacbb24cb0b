"""`python -m reticent.plugin.cli`."""

from reticent.plugin.cli import main

main()
