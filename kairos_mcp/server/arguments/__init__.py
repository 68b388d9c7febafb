"""What each tool may be given. The only place where arguments from outside are taken apart."""
