"""What the router knows: its engines and their health, what it counts, what it logs."""
