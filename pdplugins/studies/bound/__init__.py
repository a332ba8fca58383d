"""What no policy can beat, however clairvoyant: see docs/bound.md for the proof, whose terms are the names here."""
