//! The keys that clients fight over.
//!
//! Always true: all processes of a run mean the same key by the same number.
//!
//! *Hot* keys are few and there all the time. Some share a bucket, two of these their tag as well (*twins*), so that only
//! the keys in their blocks tell them apart. *Fresh* keys are new for everybody: at any moment one of them is being used
//! for the first time, because only the first put of a key is an insert.

use std::collections::HashMap;

use sidestep_common::hash::KeyHash;
use sidestep_common::layout::Superblock;

/// Keys in the twins' bucket, and in another one.
const BUCKET_MATES: usize = 4;
/// Keys anywhere.
const SINGLES: usize = 4;

/// The keys of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Keys {
    hot: Vec<u64>,
}

impl Keys {
    /// Hot keys that collide in a region with that superblock.
    pub fn colliding(superblock: &Superblock) -> Self {
        let bits = superblock.geometry.directory_bits;
        let hash = |name: u64| KeyHash::of(&hot_name(name), superblock.hash_seed);
        let bucket = |name: u64| (hash(name).directory_index(bits), hash(name).bucket_index());
        let mut names = 0..;
        // Twins agree in some thirty bits; among the square root of as many keys there is a pair.
        let mut seen = HashMap::new();
        let mut twin = |name| {
            seen.insert((bucket(name), hash(name).tag().value()), name).map(|earlier| vec![earlier, name])
        };
        let mut hot = names.by_ref().find_map(&mut twin).unwrap_or_default();
        let first = bucket(hot[0]);
        hot.extend(names.by_ref().filter(|name| bucket(*name) == first).take(BUCKET_MATES - 2));
        let other = names.by_ref().find(|name| bucket(*name) != first).map(|name| (name, bucket(name)));
        if let Some((name, other)) = other {
            hot.push(name);
            hot.extend(names.by_ref().filter(|name| bucket(*name) == other).take(BUCKET_MATES - 1));
        }
        hot.extend(names.take(SINGLES));
        Self { hot }
    }

    /// Hot keys, as [`text`](Self::text) wrote them.
    pub fn parse(text: &str) -> Option<Self> {
        let hot = text.split(',').map(str::parse).collect::<Result<Vec<u64>, _>>().ok()?;
        Some(Self { hot })
    }

    /// The hot keys in words.
    pub fn text(&self) -> String {
        self.hot.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
    }

    /// How many hot keys there are; they have the first numbers.
    pub const fn hot_count(&self) -> u16 {
        self.hot.len() as u16
    }

    /// The number of the fresh key `index`; beyond the last there are no new ones.
    pub fn fresh(&self, index: u64) -> u16 {
        u16::try_from(u64::from(self.hot_count()) + index).unwrap_or(u16::MAX)
    }

    /// A key's bytes.
    pub fn name(&self, key: u16) -> [u8; 8] {
        match self.hot.get(usize::from(key)) {
            Some(name) => hot_name(*name),
            None => [0xff, (key >> 8) as u8, key as u8, 0, 0, 0, 0, 0],
        }
    }

    /// A key in words.
    pub fn describe(&self, key: u16) -> String {
        let kind = if key < self.hot_count() { "hot" } else { "fresh" };
        let name: String = self.name(key).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("key {key} ({kind}, 0x{name})")
    }
}

/// Never so large that it begins as fresh keys do.
fn hot_name(name: u64) -> [u8; 8] {
    name.to_be_bytes()
}

#[cfg(test)]
mod tests {
    use sidestep_common::layout::{AtomicityDomain, Geometry};

    use super::*;

    #[test]
    fn hot_keys_collide_and_all_keys_differ() {
        for seed in 0..3 {
            let superblock = Superblock {
                geometry: Geometry::for_region(16 << 20).unwrap(),
                incarnation: 1,
                hash_seed: seed,
                domain: AtomicityDomain::Cpu,
                grace_ms: 100,
            };
            let keys = Keys::colliding(&superblock);
            let bits = superblock.geometry.directory_bits;
            let hash = |key: u16| KeyHash::of(&keys.name(key), seed);
            let bucket = |key: u16| (hash(key).directory_index(bits), hash(key).bucket_index());
            assert_eq!(hash(0).tag(), hash(1).tag());
            assert!((0..4).all(|key| bucket(key) == bucket(0)), "seed {seed}");
            assert!((4..8).all(|key| bucket(key) == bucket(4)), "seed {seed}");
            assert_eq!(keys.hot_count(), 12);
            let mut names: Vec<_> = (0..1000).map(|key| keys.name(key)).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), 1000);
            assert_eq!(Keys::parse(&keys.text()), Some(keys));
        }
    }
}
