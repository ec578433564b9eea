"""Which changes of an input are possible, what they gain, and where the script makes them."""
