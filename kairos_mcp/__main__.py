"""`python -m kairos_mcp` is the command `kairos-mcp`."""

from kairos_mcp.cli.main import main

main()
