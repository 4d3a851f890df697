"""Remote frames, tested: servers that others wrote, a proxy in front of them that counts requests and spoils answers."""
