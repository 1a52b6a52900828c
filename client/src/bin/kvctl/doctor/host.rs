//! What the operating system says.
//!
//! Always true: what can't be read counts as not there; nothing here fails.

use std::fs;

use rustix::process::{Resource, getrlimit};
use sidestep_client::common::memory::{Available, HugePages as PageChoice, Mapping, MappingOptions};

use super::facts::{HugePages, Memlock, Outcome, SharedMemory};

/// The limit on locked memory, of this process.
pub(super) fn memlock() -> Memlock {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    Memlock { limit_bytes: getrlimit(Resource::Memlock).current, exempt: may_lock(&status) }
}

/// Whether `CAP_IPC_LOCK` is among the effective capabilities in `status`.
fn may_lock(status: &str) -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| (mask >> CAP_IPC_LOCK) & 1 == 1)
}

/// Huge pages of each size that the kernel has.
pub(super) fn huge_pages() -> Vec<HugePages> {
    let Ok(folders) = fs::read_dir("/sys/kernel/mm/hugepages") else { return Vec::new() };
    let mut pools: Vec<HugePages> = folders
        .filter_map(|folder| {
            let folder = folder.ok()?;
            let name = folder.file_name().into_string().ok()?;
            let number = |file: &str| fs::read_to_string(folder.path().join(file)).ok()?.trim().parse().ok();
            Some(HugePages {
                page_bytes: page_bytes(&name)?,
                total: number("nr_hugepages")?,
                free: number("free_hugepages")?,
            })
        })
        .collect();
    pools.sort_unstable_by_key(|pool| pool.page_bytes);
    pools
}

/// Out of a folder's name such as `hugepages-2048kB`.
fn page_bytes(name: &str) -> Option<u64> {
    name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Memory that may be taken.
pub(super) fn memory() -> Option<(u64, String)> {
    Available::now().map(|available| (available.bytes, available.limit.to_string()))
}

/// /dev/shm, and whether a region can be made.
pub(super) fn shared_memory() -> SharedMemory {
    let dev_shm = rustix::fs::statvfs("/dev/shm")
        .ok()
        .map(|at| (at.f_blocks.saturating_mul(at.f_frsize), at.f_bavail.saturating_mul(at.f_frsize)));
    let region = match small_region() {
        Ok(mapping) => Outcome::Ok(mapping.describe()),
        Err(reason) => Outcome::Error(reason),
    };
    SharedMemory { dev_shm, region }
}

/// A region as the server makes it, but small.
pub(super) fn small_region() -> Result<Mapping, String> {
    let options = MappingOptions {
        bytes: 1 << 20,
        huge_pages: PageChoice::Off,
        threads: 1,
        name: "kvctl-doctor".into(),
    };
    Mapping::create(&options).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_understood() {
        assert!(may_lock("Name:\tx\nCapEff:\t0000000000004000\n"));
        assert!(!may_lock("CapEff:\t000001ffffffbfff\n"));
        assert!(!may_lock(""));
        assert_eq!(page_bytes("hugepages-2048kB"), Some(2 << 20));
        assert_eq!(page_bytes("hugepages-1048576kB"), Some(1 << 30));
        assert_eq!(page_bytes("other"), None);
    }
}
