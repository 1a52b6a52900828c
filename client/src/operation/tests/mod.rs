//! The operations against a memory node that is only memory: what they cost, and every interleaving of small
//! sets of them, verb by verb.

mod interleaving;
mod stories;
mod world;
