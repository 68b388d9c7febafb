"""`python -P -m kairos_mcp` is the command `kairos-mcp`; without `-P` the current folder brings its own modules."""

from kairos_mcp.cli.main import main

main()
