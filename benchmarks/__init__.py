"""What Kairos costs, each figure as a ratio to a floor that is measured in the same run. See README.md."""
