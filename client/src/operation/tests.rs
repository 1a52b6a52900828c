//! Interleavings of the pure operations, verb by verb, come here.
