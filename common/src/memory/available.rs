//! How much memory may be taken, and what sets the limit.
//!
//! Always true: [`Available::now`] names the *tightest* of the host's free memory and the limits of every control
//! group above this process, of both versions; a limit that can't be read is left out, never guessed.
//!
//! It is asked before a region is touched, since the kernel's own answer to a shortage is to kill somebody. What
//! others take between the question and the touching can't be seen from here.

use std::path::{Path, PathBuf};

/// What sets a limit on memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MemoryLimit {
    /// `MemAvailable` of the host.
    Host,
    /// A control group, by the file that holds its limit.
    ControlGroup(PathBuf),
    /// `RLIMIT_FSIZE`, which also holds for files in memory.
    FileSize,
}

impl std::fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Host => f.write_str("the host's available memory (MemAvailable)"),
            Self::ControlGroup(file) => write!(f, "the control group's limit ({})", file.display()),
            Self::FileSize => f.write_str("the file size limit (ulimit -f)"),
        }
    }
}

/// Memory that may be taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Available {
    /// How much.
    pub bytes: u64,
    /// What allows no more.
    pub limit: MemoryLimit,
}

impl Available {
    /// What this process may take at the moment; `None` on a host that says nothing.
    pub fn now() -> Option<Self> {
        Self::under(Path::new("/"))
    }

    /// As [`Available::now`], with the host's files under `root`.
    fn under(root: &Path) -> Option<Self> {
        let host = std::fs::read_to_string(root.join("proc/meminfo"))
            .ok()
            .and_then(|text| field_kib(&text, "MemAvailable:"))
            .map(|bytes| Self { bytes, limit: MemoryLimit::Host });
        host.into_iter().chain(control_groups(root)).min_by_key(|available| available.bytes)
    }
}

/// A line such as `MemAvailable:   24105 kB`, in bytes.
fn field_kib(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What each control group above this process has left.
fn control_groups(root: &Path) -> Vec<Available> {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
    let (membership, mounts) = (read("proc/self/cgroup"), read("proc/self/mountinfo"));
    let mut found = Vec::new();
    for line in membership.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(group)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let files = match (number, controllers) {
            ("0", "") => &VERSION_2,
            _ if controllers.split(',').any(|name| name == "memory") => &VERSION_1,
            _ => continue,
        };
        if let Some((mount_root, mount_point)) = mount_of(&mounts, files) {
            // Inside a container the group's path counts from the host's root, the mount from the container's.
            let below = group.strip_prefix(mount_root.as_str()).unwrap_or(group).trim_matches('/');
            let top = root.join(mount_point.trim_start_matches('/'));
            let start = top.join(below);
            let start = if start.is_dir() { start } else { top.clone() };
            let above = start.ancestors().take_while(|directory| directory.starts_with(&top));
            found.extend(above.filter_map(|directory| files.left(directory)));
        }
    }
    found
}

/// Where a memory controller keeps its figures.
struct Files {
    mount_kind: &'static str,
    limit: &'static str,
    usage: &'static str,
    /// In `memory.stat`: the page cache that the kernel gives up at once.
    reclaimable: &'static str,
}

const VERSION_2: Files = Files {
    mount_kind: "cgroup2",
    limit: "memory.max",
    usage: "memory.current",
    reclaimable: "inactive_file ",
};
const VERSION_1: Files = Files {
    mount_kind: "cgroup",
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file ",
};

impl Files {
    fn left(&self, directory: &Path) -> Option<Available> {
        let number =
            |name: &str| std::fs::read_to_string(directory.join(name)).ok()?.trim().parse::<u64>().ok();
        // "max" is no number: no limit.
        let (limit, usage) = (number(self.limit)?, number(self.usage)?);
        let statistics = std::fs::read_to_string(directory.join("memory.stat")).unwrap_or_default();
        let reclaimable = statistics
            .lines()
            .find_map(|line| line.strip_prefix(self.reclaimable)?.trim().parse::<u64>().ok());
        Some(Available {
            bytes: limit.saturating_sub(usage.saturating_sub(reclaimable.unwrap_or(0))),
            limit: MemoryLimit::ControlGroup(directory.join(self.limit)),
        })
    }
}

/// Root and mount point of the file system that holds the controller's files, from `mountinfo`.
fn mount_of(mounts: &str, files: &Files) -> Option<(String, String)> {
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut kind = right.split(' ');
        if kind.next() != Some(files.mount_kind) {
            return None;
        }
        let options = kind.next_back().unwrap_or_default();
        if files.mount_kind == "cgroup" && !options.split(',').any(|option| option == "memory") {
            return None;
        }
        let mut left = left.split(' ').skip(3);
        Some((left.next()?.to_owned(), left.next()?.to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host's files, removed at the end of the test.
    struct Host(PathBuf);

    impl Host {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("sidestep-available-{name}-{}", std::process::id()));
            Self(root)
        }

        fn file(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }

    impl Drop for Host {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_host_without_limits_has_what_is_available() {
        let host = Host::new("plain");
        host.file("proc/meminfo", "MemTotal:       2000 kB\nMemAvailable:   1000 kB\n");
        assert_eq!(Available::under(&host.0), Some(Available { bytes: 1_024_000, limit: MemoryLimit::Host }));
    }

    /// The limit sits on the slice above the service's own group, which says "max".
    #[test]
    fn a_limit_of_a_group_above_counts() {
        let host = Host::new("v2");
        host.file("proc/meminfo", "MemAvailable:   1000000 kB\n");
        host.file("proc/self/cgroup", "0::/shop.slice/store.service\n");
        host.file("proc/self/mountinfo", "38 31 0:41 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n");
        host.file("sys/fs/cgroup/shop.slice/store.service/memory.max", "max\n");
        host.file("sys/fs/cgroup/shop.slice/store.service/memory.current", "0\n");
        host.file("sys/fs/cgroup/shop.slice/memory.max", "1000\n");
        host.file("sys/fs/cgroup/shop.slice/memory.current", "700\n");
        host.file("sys/fs/cgroup/shop.slice/memory.stat", "anon 1\ninactive_file 200\n");
        let available = Available::under(&host.0).unwrap();
        assert_eq!(available.bytes, 500);
        assert!(available.limit.to_string().contains("shop.slice/memory.max"), "{available:?}");
    }

    /// A container of the first version: the group's path is the host's, the mount shows its own group as root.
    #[test]
    fn a_container_of_version_one_finds_its_own_limit() {
        let host = Host::new("v1");
        host.file("proc/meminfo", "MemAvailable:   1000000 kB\n");
        host.file("proc/self/cgroup", "5:cpu:/x\n4:memory:/docker/abc\n0::/\n");
        host.file(
            "proc/self/mountinfo",
            "32 31 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
             35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro,relatime - cgroup cgroup rw,memory\n",
        );
        host.file("sys/fs/cgroup/memory/memory.limit_in_bytes", "4096\n");
        host.file("sys/fs/cgroup/memory/memory.usage_in_bytes", "96\n");
        assert_eq!(Available::under(&host.0).unwrap().bytes, 4000);
    }
}
