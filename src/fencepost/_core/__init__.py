"""What every part shares: ports, scripts, keys, codecs, events. Imports no server and no client."""
