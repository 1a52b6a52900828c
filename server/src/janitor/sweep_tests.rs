//! Sweeps, step by step, over an index that the tests write themselves.

use std::ptr::NonNull;

use sidestep_common::layout::{
    BlockPlace, BlockRef, CHUNK_BYTES, DirectoryWord, Offset, SizeClass, SlotWord, Tag, Version, chunk_shape,
};
use sidestep_common::wire::{ChunkGrant, ChunkPurpose, ReturnedChunk};

use super::*;

const A: SessionId = SessionId(1);
const B: SessionId = SessionId(2);

/// A region whose directory names one segment for each half of its entries, and the books of it.
struct Bed {
    epochs: Mutex<Epochs>,
    pool: Mutex<BlockPool>,
    sweeps: Mutex<SweepBook>,
    sweep: Sweep,
    words: WordMemory,
    geometry: Geometry,
    _memory: Vec<u64>,
}

impl Bed {
    fn new(region_bytes: u64) -> Self {
        let mut memory = vec![0_u64; region_bytes as usize / 8];
        let base = NonNull::new(memory.as_mut_ptr().cast()).unwrap();
        // SAFETY: the vector is kept beside the words.
        let words = unsafe { WordMemory::new(base, region_bytes) };
        let geometry = Geometry::for_region(region_bytes).unwrap();
        let entries = geometry.directory_entries();
        for entry in 0..entries {
            let segment = if entry < entries / 2 { 3 } else { 5 };
            let word = DirectoryWord { segment, generation: 1, depth: 1 };
            words.store(geometry.directory_word_offset(entry), word.to_bits()).unwrap();
        }
        let bed = Self {
            epochs: Mutex::new(Epochs::new()),
            pool: Mutex::new(BlockPool::new(&geometry, None, words)),
            sweeps: Mutex::default(),
            sweep: Sweep::default(),
            words,
            geometry,
            _memory: memory,
        };
        locked(&bed.epochs).join(A);
        locked(&bed.epochs).join(B);
        bed
    }

    /// Steps until an epoch is waited for, or there is nothing to do; says whether an audit was done.
    fn advance(&mut self) -> bool {
        let mut is_done = false;
        loop {
            let books = Books {
                epochs: &self.epochs,
                pool: &self.pool,
                sweeps: &self.sweeps,
                words: self.words,
                geometry: self.geometry,
            };
            match self.sweep.advance(&books).unwrap() {
                Progress::Waits => return is_done,
                Progress::GoesOn => {}
                Progress::Done => is_done = true,
            }
        }
    }

    /// Raises the epoch and lets these acknowledge it.
    fn acknowledge(&self, sessions: &[SessionId]) {
        let mut epochs = locked(&self.epochs);
        if epochs.should_raise() {
            epochs.raise();
        }
        let newest = epochs.newest();
        sessions.iter().for_each(|session| epochs.acknowledge(*session, newest).unwrap());
    }

    fn grant(&self, session: SessionId, bytes: u64) -> ChunkGrant {
        let class = SizeClass::holding(bytes).unwrap().index();
        locked(&self.pool).grant(session, class, 1, ChunkPurpose::General).unwrap().remove(0)
    }

    /// Puts a word that names a block into a slot of segment 3 or 5.
    fn publish(&self, segment: u64, slot: u64, block: BlockRef) {
        let word = SlotWord::live(Tag::from_low_bits(slot), block, false);
        self.store(segment, slot, word.bits());
    }

    fn store(&self, segment: u64, slot: u64, bits: u64) {
        let start = self.geometry.segment_pool_offset.plus(segment * 16384);
        self.words.store(start.plus(8 * (1 + slot / 31 * 32 + slot % 31)), bits).unwrap();
    }

    fn end(&self, session: SessionId) {
        locked(&self.epochs).leave(session);
        let chunks = locked(&self.pool).end_session(session);
        locked(&self.sweeps).note_death(Death { session, noticed: Instant::now(), chunks });
    }

    fn audited(&self, session: SessionId, grant: &ChunkGrant) -> Option<Vec<u8>> {
        let serial = locked(&self.pool).serial_of(session, grant.offset)?;
        locked(&self.sweeps).audited(grant.offset, serial).map(<[u8]>::to_vec)
    }

    /// The newest audit that was announced, and the newest that is done.
    fn audits(&self) -> (u64, u64) {
        let sweeps = locked(&self.sweeps);
        (sweeps.begun(), sweeps.done())
    }

    fn figures(&self) -> SweepFigures {
        locked(&self.sweeps).figures()
    }
}

fn block(grant: &ChunkGrant, index: u32, version: u8) -> BlockRef {
    let class = SizeClass::from_index(grant.class).unwrap();
    BlockPlace { chunk: Offset(grant.offset), index }.block(class, Version(version))
}

/// A dies with one block published and others not. Its chunk is found out once B has acknowledged an epoch before the scan and
/// one after it, and B is told which of its own blocks the index reaches.
#[test]
fn a_dead_sessions_chunks_are_swept_and_the_others_audited() {
    let mut bed = Bed::new(64 << 20);
    let (of_a, empty_of_a, of_b) = (bed.grant(A, 200), bed.grant(A, 200), bed.grant(B, 64));
    let extent = bed.grant(B, 300 << 10);
    bed.publish(3, 0, block(&of_a, 2, 7));
    bed.publish(5, 1984 - 1, block(&of_b, 9, 1));
    bed.publish(5, 40, block(&of_b, 16_130, 2));
    bed.publish(5, 41, block(&extent, 0, 2));
    assert!(!bed.advance());
    assert_eq!(locked(&bed.sweeps).begun(), 0, "nobody died");
    bed.end(A);
    assert!(!bed.advance());
    assert_eq!(bed.audits(), (1, 0));
    assert!(!bed.advance());
    bed.acknowledge(&[]);
    assert!(!bed.advance());
    assert_eq!(bed.figures().sweeps_total, 0, "B hasn't acknowledged");
    bed.acknowledge(&[B]);
    assert!(!bed.advance(), "scanned, but B may not know yet");
    assert_eq!(locked(&bed.pool).accounts().orphan.chunks, 2);
    bed.acknowledge(&[]);
    assert!(!bed.advance());
    bed.acknowledge(&[B]);
    assert!(bed.advance());
    let accounts = locked(&bed.pool).accounts();
    assert_eq!((accounts.orphan.chunks, accounts.ownerless.chunks, accounts.swept_total), (0, 1, 2));
    assert_eq!(bed.audited(A, &of_a), None);
    let reached = bed.audited(B, &of_b).unwrap();
    assert_eq!(reached.len(), 16_130 / 8 + 1);
    let bits: Vec<usize> =
        (0..reached.len() * 8).filter(|bit| reached[bit / 8] >> (bit % 8) & 1 == 1).collect();
    assert_eq!(bits, [9, 16_130]);
    assert_eq!(bed.audited(B, &extent).unwrap(), [1]);
    let adopted = bed.grant(B, 200);
    assert_eq!((adopted.offset, adopted.versions[2]), (of_a.offset, 7));
    assert_eq!(bed.audited(B, &adopted), None, "it is another grant than the scan saw");
    let seen = bed.figures();
    assert_eq!((seen.sweeps_total, seen.sessions_total, seen.last_scan.segments), (1, 1, 2));
    assert_eq!((seen.last_scan.blocks, seen.last_scan.strangers, seen.last_scan.malformed), (4, 0, 0));
    assert!(!bed.advance(), "and that was all");
    assert_eq!(locked(&bed.sweeps).begun(), 1);
    assert_ne!(empty_of_a.offset, of_a.offset);
}

/// A session that dies between the announcement and the scan is swept by that scan; but owners left blocks out that they
/// published since the announcement, so there is another audit. One that dies later is swept by that.
#[test]
fn whoever_dies_during_a_sweep_makes_another_one_necessary() {
    let mut bed = Bed::new(64 << 20);
    let c = SessionId(3);
    locked(&bed.epochs).join(c);
    let (of_a, of_c) = (bed.grant(A, 200), bed.grant(c, 200));
    bed.publish(3, 0, block(&of_a, 0, 1));
    bed.publish(3, 1, block(&of_c, 0, 1));
    locked(&bed.sweeps).note_death(Death { session: SessionId(9), noticed: Instant::now(), chunks: 0 });
    bed.advance();
    bed.end(A);
    bed.acknowledge(&[B, c]);
    bed.advance();
    bed.end(c);
    bed.acknowledge(&[B]);
    assert!(bed.advance());
    assert_eq!(bed.figures().sessions_total, 2);
    let states = |bed: &Bed| {
        let accounts = locked(&bed.pool).accounts();
        (accounts.orphan.chunks, accounts.ownerless.chunks)
    };
    assert_eq!(states(&bed), (1, 1));
    assert_eq!(bed.audits(), (2, 1));
    bed.acknowledge(&[B]);
    bed.advance();
    bed.acknowledge(&[B]);
    assert!(bed.advance());
    assert_eq!((states(&bed), bed.figures().sessions_total), ((0, 2), 3));
    assert_eq!(bed.audits(), (2, 2));
}

/// A session that came after the announcement is told nothing of that audit: it did not hear of its beginning, so it can't know
/// which of its blocks were published all the while.
#[test]
fn whoever_comes_after_the_announcement_is_not_audited() {
    let mut bed = Bed::new(64 << 20);
    let of_b = bed.grant(B, 200);
    bed.end(A);
    bed.advance();
    bed.acknowledge(&[]);
    let c = SessionId(3);
    assert_eq!(locked(&bed.epochs).join(c), 2, "the epoch behind the announcement");
    let of_c = bed.grant(c, 200);
    bed.acknowledge(&[B]);
    bed.advance();
    // This one the scan has missed, and it is in use.
    bed.publish(3, 0, block(&of_c, 0, 1));
    bed.acknowledge(&[B, c]);
    assert!(bed.advance());
    assert_eq!((bed.audited(B, &of_b), bed.audited(c, &of_c)), (Some(vec![]), None));
}

/// A chunk of nobody is adopted while it is scanned, after a death: what was lost in it is its new owner's to find, by one
/// more audit and no more.
#[test]
fn a_chunk_adopted_during_a_sweep_is_audited_again_once() {
    let mut bed = Bed::new(64 << 20);
    let grant = bed.grant(B, 200);
    let returned = ReturnedChunk { offset: grant.offset, versions: vec![1, 1], empty: false };
    locked(&bed.pool).return_chunks(B, vec![returned], || 1).unwrap();
    locked(&bed.pool).recycle(1);
    bed.publish(3, 0, block(&grant, 0, 1));
    bed.end(A);
    let sweep_with = |bed: &mut Bed, between: &dyn Fn(&Bed)| {
        bed.advance();
        bed.acknowledge(&[B]);
        bed.advance();
        between(bed);
        bed.acknowledge(&[B]);
        assert!(bed.advance());
    };
    sweep_with(&mut bed, &|bed| assert_eq!(bed.grant(B, 200).offset, grant.offset));
    assert_eq!(locked(&bed.sweeps).begun(), 2);
    sweep_with(&mut bed, &|_| ());
    assert_eq!(bed.audited(B, &grant).unwrap(), [1]);
    bed.acknowledge(&[B]);
    assert!(!bed.advance());
    assert_eq!(locked(&bed.sweeps).begun(), 2);
}

/// A segment is rebuilt between two steps of a scan: behind its place, before it, and across it. The blocks are found all the
/// same.
#[test]
fn rebuilds_between_two_steps_hide_nothing() {
    let bed = Bed::new(64 << 20);
    let grant = bed.grant(A, 64);
    let entries = bed.geometry.directory_entries();
    let name = |range: std::ops::Range<u64>, segment, depth| {
        for entry in range {
            let word = DirectoryWord { segment, generation: 2, depth };
            bed.words.store(bed.geometry.directory_word_offset(entry), word.to_bits()).unwrap();
        }
    };
    let reached = |scan: &Scan| scan.found().next().unwrap().bits().to_vec();
    let scan = || Scan::new(bed.geometry, locked(&bed.pool).cut_up());
    bed.publish(3, 0, block(&grant, 0, 1));
    bed.publish(5, 0, block(&grant, 1, 1));
    // The first half's segment becomes two when it was read; the second half's becomes another one before it is.
    let mut scan_of_halves = scan();
    assert!(!scan_of_halves.advance(bed.words, 1).unwrap());
    bed.publish(6, 9, block(&grant, 0, 1));
    bed.publish(8, 9, block(&grant, 1, 1));
    bed.store(3, 0, SlotWord::CLOSED.bits());
    bed.store(5, 0, SlotWord::CLOSED.bits());
    name(0..entries / 4, 6, 2);
    name(entries / 4..entries / 2, 7, 2);
    name(entries / 2..entries, 8, 1);
    while !scan_of_halves.advance(bed.words, 1).unwrap() {}
    assert_eq!(reached(&scan_of_halves)[0], 0b11);
    assert_eq!(scan_of_halves.figures().segments, 4, "both parts of what was split were read again");
    // And all of it becomes one when the first quarter was read.
    let mut scan_of_quarters = scan();
    assert!(!scan_of_quarters.advance(bed.words, 1).unwrap());
    for (slot, index) in [(0, 0), (1, 1)] {
        bed.publish(9, slot, block(&grant, index, 1));
    }
    bed.store(6, 9, SlotWord::CLOSED.bits());
    bed.store(8, 9, SlotWord::CLOSED.bits());
    name(0..entries, 9, 0);
    while !scan_of_quarters.advance(bed.words, 1).unwrap() {}
    assert_eq!(reached(&scan_of_quarters)[0], 0b11);
}

/// Words that name no block of any chunk, or are none, change nothing and are counted.
#[test]
fn words_of_nonsense_are_counted() {
    let mut bed = Bed::new(64 << 20);
    let grant = bed.grant(A, 200);
    let good = block(&grant, 0, 1);
    let class = |bytes| SizeClass::holding(bytes).unwrap();
    let pool = bed.geometry.block_pool_offset;
    for (slot, nonsense) in (0..).zip([
        BlockRef { offset: good.offset.plus(64), ..good },
        BlockRef { class: class(64), ..good },
        BlockRef { class: class(1 << 20), ..good },
        BlockRef { offset: Offset(grant.offset), ..good },
        BlockRef { offset: Offset(0), ..good },
        BlockRef { offset: Offset(0), class: class(1 << 20), ..good },
        BlockRef { offset: Offset(pool.0 - 64), ..good },
        BlockRef { offset: Offset((1 << 41) - 64), ..good },
        BlockRef { offset: Offset(grant.offset + chunk_shape(good.class).bytes - 64), ..good },
    ]) {
        bed.publish(3, slot, nonsense);
    }
    bed.store(5, 0, 1);
    bed.store(5, 1, SlotWord::CLOSED.bits());
    // An entry that names no segment is none.
    bed.words.store(bed.geometry.directory_word_offset(0), u64::MAX).unwrap();
    bed.end(A);
    for _ in 0..2 {
        bed.advance();
        bed.acknowledge(&[B]);
    }
    assert!(bed.advance());
    let seen = bed.figures().last_scan;
    assert_eq!((seen.blocks, seen.strangers, seen.malformed), (9, 9, 1));
    assert_eq!(locked(&bed.pool).accounts().granted_bytes(), 0, "no block of the chunk was reached");
}

/// What a pass over a large index takes; run by hand, in a release build.
#[test]
#[ignore = "a measurement"]
fn scan_speed() {
    let bed = Bed::new(1 << 30);
    let entries = bed.geometry.directory_entries();
    for entry in 0..entries {
        let word = DirectoryWord { segment: entry as u32, generation: 1, depth: bed.geometry.directory_bits };
        bed.words.store(bed.geometry.directory_word_offset(entry), word.to_bits()).unwrap();
    }
    let mut grants = Vec::new();
    let class = SizeClass::holding(256).unwrap();
    while let Ok(granted) = locked(&bed.pool).grant(A, class.index(), 64, ChunkPurpose::General) {
        grants.extend(granted);
    }
    let per_chunk = u64::from(chunk_shape(class).block_count);
    let blocks = grants.len() as u64 * per_chunk;
    let (mut state, mut published) = (1_u64, 0_u64);
    for segment in 0..entries {
        for slot in 0..64 * 31 {
            if slot % 31 >= 8 {
                continue;
            }
            state = state.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
            let number = (state >> 16) % blocks;
            let grant = &grants[(number / per_chunk) as usize];
            bed.publish(segment, slot, block(grant, (number % per_chunk) as u32, 1));
            published += 1;
        }
    }
    // The best of some: other processes disturb.
    let took = (0..10).map(|_| {
        let cut_up = locked(&bed.pool).cut_up();
        let begun = Instant::now();
        let mut scan = Scan::new(bed.geometry, cut_up);
        while !scan.advance(bed.words, 1024).unwrap() {}
        let seen = scan.figures();
        assert_eq!((seen.blocks, seen.strangers), (published, 0));
        (begun.elapsed(), seen)
    });
    let (took, seen) = took.min_by_key(|(took, _)| *took).unwrap();
    let index_mib = (seen.segments * 16384) >> 20;
    println!(
        "{} segments, {index_mib} MiB of index, {} words, {} MiB of pool: {:.1} ms, {:.2} GiB/s of index, {:.1} ns a word",
        seen.segments,
        seen.blocks,
        (grants.len() as u64 * CHUNK_BYTES) >> 20,
        took.as_secs_f64() * 1e3,
        index_mib as f64 / 1024.0 / took.as_secs_f64(),
        took.as_secs_f64() * 1e9 / seen.blocks as f64,
    );
}
