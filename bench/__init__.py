"""Side-by-side measurements, in one run, as ratios with their spread. Not part of the distribution."""
