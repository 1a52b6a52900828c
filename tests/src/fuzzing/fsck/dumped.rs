//! A dump, and what a hostile file may be instead.

use std::fs::File;
use std::os::unix::fs::FileExt;

use arbitrary::Arbitrary;
use sidestep_client::fsck::dump::{DumpError, write};
use sidestep_client::fsck::{Dump, RegionSource};
use xxhash_rust::xxh3::xxh3_64;

const FOOTER_BYTES: u64 = 48;
/// Where the parts of a footer are.
const IMAGE_BYTES: usize = 16;
const PAYLOAD_BYTES: usize = 24;
const PAYLOAD_CHECKSUM: usize = 32;
const FOOTER_CHECKSUM: usize = 40;
/// Where the counts of a payload are.
const GRANT_COUNT: u64 = 128;
const CHANGED_COUNT: u64 = 136;
/// A file can be long enough for so many.
const COUNT_MAX: u64 = 1 << 38;
const PATCHES_MAX: usize = 16;

/// How a dump is damaged.
#[derive(Arbitrary, Debug)]
pub(super) struct DumpSpec {
    /// Words of payload and footer that are others, as far from the file's end as said.
    patches: Vec<(u8, u64)>,
    /// So many bytes are cut off.
    cut: u8,
    hole: Option<HoleSpec>,
    /// Checksums fit whatever they are over.
    is_mended: bool,
}

/// More grants or changed words than were written: lengths and counts fit, and where they should be is nothing.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct HoleSpec {
    is_of_grants: bool,
    count: u64,
}

impl DumpSpec {
    /// Dumps `source`, damages that, and opens it; says whether there is any damage.
    pub(super) fn open(&self, source: &mut impl RegionSource) -> Result<(Dump, bool), DumpError> {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = File::from(rustix::fs::memfd_create("sidestep fuzz", flags).expect("memory for a file"));
        write(source, &file, None).expect("a region that can be read");
        let is_damaged = self.damage(&file).expect("a file in memory");
        Dump::open(file).map(|dump| (dump, is_damaged))
    }

    fn damage(&self, file: &File) -> std::io::Result<bool> {
        let mut length = file.metadata()?.len();
        let mut footer = [0; FOOTER_BYTES as usize];
        file.read_exact_at(&mut footer, length - FOOTER_BYTES)?;
        if let Some(HoleSpec { is_of_grants, count }) = self.hole {
            let word = |at: usize| u64::from_le_bytes(footer[at..at + 8].try_into().expect("a word"));
            let (image_bytes, payload_bytes) = (word(IMAGE_BYTES), word(PAYLOAD_BYTES));
            let (count_at, each_bytes) = if is_of_grants { (GRANT_COUNT, 16) } else { (CHANGED_COUNT, 8) };
            let mut named = [0; 8];
            file.read_exact_at(&mut named, image_bytes + count_at)?;
            let count = count % COUNT_MAX;
            let named = u64::from_le_bytes(named) + count;
            file.write_all_at(&named.to_le_bytes(), image_bytes + count_at)?;
            file.write_all_at(&[0; FOOTER_BYTES as usize], length - FOOTER_BYTES)?;
            footer[PAYLOAD_BYTES..][..8].copy_from_slice(&(payload_bytes + count * each_bytes).to_le_bytes());
            length += count * each_bytes;
            file.set_len(length)?;
            file.write_all_at(&footer, length - FOOTER_BYTES)?;
        }
        for (words, bits) in self.patches.iter().take(PATCHES_MAX) {
            let at = length - 8 * (1 + u64::from(*words)).min(length / 8);
            file.write_all_at(&bits.to_le_bytes(), at)?;
        }
        if self.is_mended {
            mend(file, length)?;
        }
        if self.cut > 0 {
            file.set_len(length - u64::from(self.cut))?;
        }
        Ok(self.cut > 0 || self.hole.is_some() || !self.patches.is_empty())
    }
}

/// Makes the checksums fit, that of the payload only if it is short enough to be at hand.
fn mend(file: &File, length: u64) -> std::io::Result<()> {
    let mut footer = [0; FOOTER_BYTES as usize];
    file.read_exact_at(&mut footer, length - FOOTER_BYTES)?;
    let word = |at: usize| u64::from_le_bytes(footer[at..at + 8].try_into().expect("a word"));
    let (image_bytes, payload_bytes) = (word(IMAGE_BYTES), word(PAYLOAD_BYTES));
    if payload_bytes <= 1 << 20 && image_bytes.checked_add(payload_bytes).is_some_and(|end| end <= length) {
        let mut payload = vec![0; payload_bytes as usize];
        file.read_exact_at(&mut payload, image_bytes)?;
        footer[PAYLOAD_CHECKSUM..][..8].copy_from_slice(&xxh3_64(&payload).to_le_bytes());
    }
    let checksum = xxh3_64(&footer[..FOOTER_CHECKSUM]);
    footer[FOOTER_CHECKSUM..].copy_from_slice(&checksum.to_le_bytes());
    file.write_all_at(&footer, length - FOOTER_BYTES)
}
