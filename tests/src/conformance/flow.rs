//! Flow: credit, depth, size, and whose memory a READ lands in.

use std::time::{Duration, Instant};

use sidestep_common::fabric::{PostError, Reply, Rights};

use super::{Bed, DEADLINE, Driver, add, pattern, read_word, write};
use crate::scaled;

/// A caller that posts without polling is told when it is full, with the right numbers, and loses nothing; one poll later
/// there is room again.
pub fn full_then_poll_then_room(bed: &dyn Bed) {
    let (_, fabric) = bed.connect_with(Rights::ReadWrite, 32);
    let mut driver = Driver::new(fabric);
    let depth = driver.depth();
    for _ in 0..scaled(20) {
        for _ in 0..depth {
            driver.post(vec![add(0, 1)]);
        }
        for asked in 1..=3 {
            match driver.try_post((0..asked).map(|_| add(0, 1)).collect()) {
                Err(PostError::Full { asked: said, in_flight, limit }) => {
                    assert_eq!((said, in_flight, limit), (asked, depth, depth));
                }
                other => panic!("{other:?}"),
            }
        }
        driver.take_next().expect("a batch that succeeds");
        driver.try_post(vec![add(0, 1)]).expect("room after a completion was taken");
        while driver.outstanding() > 0 {
            driver.take_next().expect("a batch that succeeds");
        }
    }
    assert_eq!(bed.peek_word(0), scaled(20) * (depth as u64 + 1));
}

/// Depths from one to hundreds, batches of one to four verbs, one in three silent: every verb is executed once and every
/// batch accounted for.
pub fn every_depth_accounts_for_every_batch(bed: &dyn Bed) {
    for (index, depth) in [1, 2, 3, 16, 64, 256].into_iter().enumerate() {
        let (_, fabric) = bed.connect_with(Rights::ReadWrite, depth);
        let mut driver = Driver::new(fabric);
        let word = 8 * index as u64;
        let (mut verbs, mut loud, mut ended) = (0, 0, 0);
        let deadline = Instant::now() + DEADLINE;
        for batch in 0..scaled(600) as usize {
            let length = (1 + batch % 4).min(driver.depth());
            let silent = batch % 3 == 2;
            loop {
                let one = (0..length).map(|_| add(word, 1)).collect();
                match driver.try_post_all(vec![(one, silent)]) {
                    Ok(()) => break,
                    Err(PostError::Full { .. }) if driver.outstanding() > 0 => {
                        driver.take_next().expect("a batch that succeeds");
                        ended += 1;
                    }
                    Err(PostError::Full { .. }) => driver.poll_once(deadline),
                    Err(other) => panic!("depth {depth}: {other}"),
                }
            }
            verbs += length as u64;
            loud += usize::from(!silent);
        }
        while driver.outstanding() > 0 {
            driver.take_next().expect("a batch that succeeds");
            ended += 1;
        }
        // Behind everything that was silent, whose room may have to come back first.
        while let Err(error) = driver.try_post(vec![add(word, 0)]) {
            assert!(matches!(error, PostError::Full { .. }), "depth {depth}: {error}");
            driver.poll_once(deadline);
        }
        let sum = driver.take_next().expect("an atomic that succeeds");
        assert!(matches!(sum[..], [Reply::Old(old)] if old == verbs), "depth {depth}: {sum:?} for {verbs}");
        assert_eq!(ended, loud, "depth {depth}");
    }
}

/// 256 READs in flight at once: each lands in its own buffer, with its own bytes.
pub fn overlapping_reads_land_in_their_own_buffers(bed: &dyn Bed) {
    const READS: u64 = 256;
    let (_, fabric) = bed.connect_with(Rights::ReadWrite, READS as usize);
    let mut driver = Driver::new(fabric);
    for at in 0..READS {
        bed.poke_word(8 * at, at << 32 | 0xf00d);
    }
    let mut at = 0;
    for round in 0..scaled(50) {
        let places: Vec<u64> = (0..driver.depth() as u64).map(|read| (97 * read + round) % READS).collect();
        let batches = places.iter().map(|place| (vec![driver.read(8 * place, 8)], false)).collect();
        if round % 2 == 0 {
            driver.try_post_all(batches).expect("room for all");
        } else {
            for (verbs, _) in batches {
                driver.post(verbs);
            }
        }
        for place in places {
            let replies = driver.take_next().expect("a READ that succeeds");
            assert_eq!(read_word(&replies[0]), place << 32 | 0xf00d, "round {round}, place {place}");
            driver.recycle(replies);
            at += 1;
        }
    }
    assert!(at > 0);
}

/// A mebibyte and odd lengths around it, at even and odd places, several at once: whole in both directions.
pub fn large_transfers_arrive_whole(bed: &dyn Bed) {
    let mut driver = bed.connect();
    let longest = driver.fabric().limits().verb_bytes_max;
    for (seed, (remote, bytes)) in
        [(0, 1 << 20), (3, (1 << 20) + 1), (4095, (1 << 20) + 4097), (0, 2 << 20), (8192, 65_537)]
            .into_iter()
            .enumerate()
    {
        assert!(bytes <= longest, "a block has up to 2 MiB, the fabric takes {longest}");
        let from = pattern(seed as u64, bytes);
        driver.store(remote, &from);
        assert!(bed.peek_bytes(remote, bytes) == from, "WRITE of {bytes} bytes at {remote}");
        let second = 4 << 20;
        let (first_read, second_write) = (driver.read(remote, bytes), write(second + remote, &from));
        let replies = driver.run(vec![first_read, second_write]);
        assert!(matches!(&replies[0], Reply::Read(buffer) if buffer.as_slice() == from), "READ of {bytes}");
        driver.recycle(replies);
        assert!(driver.fetch(second + remote, bytes) == from, "READ of {bytes} bytes, the second copy");
    }
}

/// A client drops its connection while large READs are under way. Whatever then gets that memory is not written to by a
/// card that hasn't heard of it; and a buffer that outlives its fabric stays its owner's.
pub fn dropping_a_fabric_frees_nothing_that_is_written_to(bed: &dyn Bed) {
    const BYTES: usize = 256 << 10;
    bed.poke(0, &vec![0xee; BYTES]);
    for _ in 0..scaled(10) {
        let mut driver = bed.connect();
        let mut survivor = driver.buffer(BYTES);
        survivor.as_mut_slice().fill(0x22);
        for _ in 0..16 {
            let read = driver.read(0, BYTES);
            driver.post(vec![read]);
        }
        drop(driver);
        let fresh: Vec<Vec<u8>> = (0..20).map(|_| vec![0x11; BYTES]).collect();
        // Something that takes a while and needs the network, so that late READs would be under way meanwhile.
        assert_eq!(bed.connect().fetch(0, 8), [0xee; 8]);
        assert!(
            fresh.iter().all(|bytes| bytes.iter().all(|byte| *byte == 0x11)),
            "freed memory was written to"
        );
        assert!(survivor.as_slice().iter().all(|byte| *byte == 0x22));
    }
}

/// A caller that waits and posts again without polling in between: what has ended keeps its replies until it is polled,
/// however much is posted meanwhile.
pub fn replies_wait_until_they_are_polled(bed: &dyn Bed) {
    let (_, fabric) = bed.connect_with(Rights::ReadWrite, 256);
    let mut driver = Driver::new(fabric);
    let most = 4 * driver.depth() as u64;
    let mut posted = 0;
    for _ in 0..40 {
        while posted < most && driver.try_post(vec![add(0, 1)]).is_ok() {
            posted += 1;
        }
        driver.fabric().wait(Duration::from_millis(20));
    }
    for expected in 0..posted {
        let replies = driver.take_next().expect("an atomic that succeeds");
        assert!(matches!(replies[..], [Reply::Old(old)] if old == expected), "{replies:?} is not {expected}");
    }
}

/// Waiting ends as long as something that ended was not polled; and with nothing in flight it takes its time, whatever
/// was waited for before.
pub fn waiting_neither_sleeps_through_nor_spins(bed: &dyn Bed) {
    const LONG: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_millis(20);
    let mut driver = bed.connect();
    for round in 0..50 {
        driver.post(vec![add(0, 1)]);
        let start = Instant::now();
        while bed.peek_word(0) <= round {
            assert!(start.elapsed() < DEADLINE, "the verb was never executed");
            std::thread::yield_now();
        }
        // Often enough the completion is there when the waiting begins, which is the case to be tried.
        std::thread::sleep(Duration::from_millis(1));
        for wait in ["first", "second"] {
            let start = Instant::now();
            driver.fabric().wait(LONG);
            assert!(start.elapsed() < LONG, "round {round}: the {wait} wait slept through");
        }
        driver.take_next().expect("an atomic that succeeds");
    }
    let start = Instant::now();
    (0..20).for_each(|_| driver.fabric().wait(SHORT));
    // One or two may be left over.
    assert!(start.elapsed() > 15 * SHORT, "20 times {SHORT:?} took {:?}", start.elapsed());
}
