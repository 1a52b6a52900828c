//! What every part of Sidestep agrees on: the bytes of the region, the control messages, the fabrics.
//!
//! Imports run one way: [`layout`] knows nothing of anything else; [`memory`] holds a region's bytes;
//! [`fabric`] moves them; [`wire`] carries the control messages. What a key *means* (finding it, changing it)
//! is the client's business and is not here.
//!
//! # Glossary
//!
//! | term | meaning |
//! | --- | --- |
//! | memory node | the machine whose RAM holds the region; it runs `kvserver` |
//! | region | one contiguous, registered piece of the memory node's RAM |
//! | verb | one READ, WRITE, compare-and-swap (CAS) or fetch-and-add (FAA) on the region |
//! | qp, cq | queue pair (a connection's send and receive queues), completion queue |
//! | rkey, lkey | the keys that name registered memory to a peer's card and to one's own |
//! | doorbell | telling the card that work was queued; several verbs can share one |
//! | round trip | one wait of the client for the memory node; verbs of one batch share it |
//! | session | one thread's connection: a qp and cq, buffers, chunks of block memory, a lease |
//! | fence | make it impossible that a queue pair's earlier verbs still take effect |

pub mod fabric;
pub mod hash;
pub mod layout;
pub mod memory;
pub mod planted;
pub mod sync;
pub mod wire;
