def play(sequence): pass
