"""`headway doctor`: an installation, a machine, a file and a running fleet examined."""
