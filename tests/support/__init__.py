"""What tests of several packages share: servers and clients as real processes, scripted models, places, laws."""
