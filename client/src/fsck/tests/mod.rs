//! fsck against regions in memory: sound ones, damaged ones, nonsense, and ones that change at every moment.

mod damaged;
mod flipped;
mod moving;
mod nonsense;
mod sound;
mod switched;

/// A file that nobody else sees.
fn memory_file() -> std::fs::File {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    std::fs::File::from(rustix::fs::memfd_create("fsck test", flags).unwrap())
}
