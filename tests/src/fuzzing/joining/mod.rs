//! Joining a hostile memory node: superblock, directory and everything behind them are the fuzzer's. The client believes
//! nothing that contradicts itself, its verbs stay in the region that it was told of, it changes nothing but blocks of
//! chunks that it was granted, free maps and slots; and what it calls ends with a value, a miss or an error with a type.
//!
//! What runs is the real driver, over a fabric that is not one.

mod node;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use arbitrary::Arbitrary;
use sidestep_client::Error;
use sidestep_client::fuzzing::Joined;
use sidestep_common::layout::{AtomicityDomain, Geometry, SizeClass, Superblock, chunk_shape};
use sidestep_common::wire::ChunkGrant;

use super::versions::VersionsSpec;
use node::{NodeSpec, Seen};

/// Bounds the directory, which is read whole: 64 KiB of it.
const REGION_MEBIBYTES_MAX: u16 = 1024;
const CALLS_MAX: usize = 6;
/// Enough that their blocks are more than fit what may be in flight.
const KEYS_MAX: u8 = 12;
/// A call that must wait for somebody (which shows in the region for ever) ends after this.
const PATIENCE: Duration = Duration::from_millis(2);
/// Joining never waits for anybody. The node hangs up if it goes on and on.
const JOIN_PATIENCE: Duration = Duration::from_secs(20);

#[derive(Arbitrary, Debug)]
struct Input {
    told: Told,
    /// A bit of the superblock that is another one when it is read over the data path.
    found_otherwise: Option<u16>,
    grants: Vec<GrantSpec>,
    node: NodeSpec,
    calls: Vec<Call>,
}

/// The superblock that comes over the control channel.
#[derive(Arbitrary, Debug)]
struct Told {
    mebibytes: u16,
    more_bytes: u32,
    nic: bool,
    grace_ms: u64,
    incarnation: u64,
    changed_bit: Option<u16>,
}

#[derive(Arbitrary, Debug)]
enum GrantSpec {
    Good { number: u8, class: u8, versions: VersionsSpec },
    Any { offset: u64, class: u8, versions: VersionsSpec },
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Call {
    /// So many keys in step, from that one.
    Get(u8, u8),
    Put(u8, u16),
    Delete(u8),
}

impl Told {
    fn superblock(&self) -> Superblock {
        let mebibytes = u64::from(self.mebibytes % REGION_MEBIBYTES_MAX).max(4);
        let region_bytes = (mebibytes << 20) + u64::from(self.more_bytes % (1 << 20));
        let geometry = Geometry::for_region(region_bytes).expect("a region's size");
        let domain = if self.nic { AtomicityDomain::Nic } else { AtomicityDomain::Cpu };
        let (incarnation, hash_seed) = (self.incarnation, node::SEED);
        Superblock { geometry, incarnation, hash_seed, domain, grace_ms: self.grace_ms }
    }
}

impl GrantSpec {
    fn grant(&self, geometry: &Geometry) -> ChunkGrant {
        match *self {
            Self::Good { number, class, ref versions } => {
                let class = SizeClass::from_index(class % SizeClass::COUNT as u8).expect("a class in use");
                let offset = geometry.block_pool_offset.0 + (u64::from(number) << 20);
                let versions = versions.versions(chunk_shape(class).block_count);
                ChunkGrant { offset, class: class.index(), versions }
            }
            Self::Any { offset, class, ref versions } => {
                ChunkGrant { offset, class, versions: versions.versions(u32::MAX) }
            }
        }
    }
}

/// See the module.
pub fn run(bytes: &[u8]) {
    let Some(input) = super::input::<Input>(bytes) else { return };
    let superblock = input.told.superblock();
    let (mut told, mut found) = (superblock.encode(), superblock.encode());
    if let Some(bit) = input.told.changed_bit {
        told[usize::from(bit / 8) % told.len()] ^= 1 << (bit % 8);
    }
    if let Some(bit) = input.found_otherwise {
        found[usize::from(bit / 8) % found.len()] ^= 1 << (bit % 8);
    }
    let grants: Vec<_> = input.grants.iter().map(|grant| grant.grant(&superblock.geometry)).collect();
    let seen = Arc::new(Mutex::new(Seen::new(superblock.geometry, &grants)));
    let fabric = node::fabric(input.node, superblock, found.to_vec(), Arc::clone(&seen));
    let joined = Joined::new(Box::new(fabric), &told, grants, JOIN_PATIENCE);
    let mut joined = match joined {
        Ok(joined) => joined,
        Err(error) => return check_error(&error),
    };
    assert!(told == superblock.encode() && found == told, "a region that contradicts itself was believed");
    assert_eq!(*joined.superblock(), superblock);
    for call in input.calls.iter().take(CALLS_MAX) {
        perform(*call, &mut joined);
    }
}

fn perform(call: Call, joined: &mut Joined) {
    let result = match call {
        Call::Get(first, count) => {
            let keys = (0..1 + count % KEYS_MAX).map(|number| node::key(first.wrapping_add(number)));
            for result in joined.get_many(&keys.collect::<Vec<_>>(), PATIENCE) {
                match result {
                    // Only what the node has put into a block of that key comes back.
                    Ok(value) => {
                        assert!(value.is_none_or(|value| value.iter().all(|byte| *byte == node::FILL)))
                    }
                    Err(error) => check_error(&error),
                }
            }
            Ok(())
        }
        Call::Put(key, bytes) => {
            let value = vec![0xbb; usize::from(bytes)];
            joined.put(node::key(key), &value, PATIENCE).map(drop)
        }
        Call::Delete(key) => joined.delete(node::key(key), PATIENCE).map(drop),
    };
    if let Err(error) = result {
        check_error(&error);
    }
}

/// An error with a type and with words.
fn check_error(error: &Error) {
    assert!(!error.to_string().is_empty());
    let expected = matches!(
        error,
        Error::Protocol { .. }
            | Error::Operation(_)
            | Error::OutOfMemory(_)
            | Error::Failed { .. }
            | Error::Unreachable { .. }
            | Error::Buffers(_)
    );
    assert!(expected, "{error:?}");
}
