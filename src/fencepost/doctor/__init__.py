"""What a server's settings do to what is kept on it: looked at without changing anything."""
