//! Rule 2 of the contract: verbs of a session execute in the order posted, as others see it too.

use super::{Do, MakeCard, Region, between_two, words_of, write};
use crate::layout::Offset;
use crate::sync::explore;

const SLOT: u64 = 0;
const BLOCK: u64 = 8;
const X: u64 = 0;
const Y: u64 = 8;

between_two!(
    bare too:
    a_published_block_is_complete,
    a_block_published_by_an_addition_is_complete,
    a_swap_that_wins_shows_the_block_behind_the_word_it_took,
    a_swap_that_fails_shows_the_block_behind_the_word_it_found,
    the_memory_node_sees_and_shows_things_in_order,
    writes_are_seen_in_order,
    a_mark_is_seen_after_the_unlinking,
    what_a_third_one_hears_of_is_complete,
    a_word_never_goes_back;
    fenced:
    a_read_does_not_pass_an_earlier_write,
    a_read_does_not_pass_an_earlier_swap,
    a_swap_that_fails_does_not_pass_an_earlier_write,
    a_swap_does_not_pass_an_earlier_write,
    an_addition_does_not_pass_an_earlier_write,
);

/// A put: a block of header, key and value, then its slot. Whoever finds the slot changed finds the whole block.
fn a_published_block_is_complete([writer, reader]: [MakeCard; 2]) {
    explore(None, move || {
        let region = Region::zeroed(3);
        let putting = region.play(writer, |session| {
            session.run(&[Do::Write(BLOCK, vec![vec![1; 5], vec![1; 11]]), Do::Swap(SLOT, 0, 1)]);
        });
        let mut session = region.session(reader);
        if session.read(SLOT) == 1 {
            assert_eq!(session.read_words(BLOCK, 2), [0x0101_0101_0101_0101; 2]);
        }
        putting.join().unwrap();
    });
}

/// The same by FAA, on both sides.
fn a_block_published_by_an_addition_is_complete([writer, reader]: [MakeCard; 2]) {
    explore(None, move || {
        let region = Region::zeroed(2);
        let putting = region.play(writer, |session| {
            session.run(&[write(BLOCK, 1), Do::Add(SLOT, 1)]);
        });
        let mut session = region.session(reader);
        if words_of(&session.run(&[Do::Add(SLOT, 10)])[0]) == [1] {
            assert_eq!(session.read(BLOCK), 1);
        }
        putting.join().unwrap();
    });
}

/// Somebody takes a word by CAS that another one has just put there, without having read it before.
fn a_swap_that_wins_shows_the_block_behind_the_word_it_took([writer, taker]: [MakeCard; 2]) {
    explore(None, move || {
        let region = Region::zeroed(2);
        let putting = region.play(writer, |session| {
            session.run(&[write(BLOCK, 1), Do::Swap(SLOT, 0, 1)]);
        });
        let mut session = region.session(taker);
        if session.swap(SLOT, 1, 2) == 1 {
            assert_eq!(session.read(BLOCK), 1);
        }
        putting.join().unwrap();
    });
}

/// Two puts race for a slot. The loser is told the winner's word, and may read the winner's block at once.
fn a_swap_that_fails_shows_the_block_behind_the_word_it_found(cards: [MakeCard; 2]) {
    explore(None, move || {
        let region = Region::zeroed(3);
        let block = |number: u64| BLOCK + 8 * (number - 1);
        let put = move |session: &mut super::Session, number: u64| {
            session.run(&[write(block(number), number)]);
            let found = session.swap(SLOT, 0, number);
            if found != 0 {
                assert_eq!(session.read(block(found)), found);
            }
            found
        };
        let other = region.play(cards[0], move |session| put(session, 1));
        let mine = put(&mut region.session(cards[1]), 2);
        let theirs = other.join().unwrap();
        assert!((mine, theirs) == (0, 2) || (mine, theirs) == (1, 0), "{mine} {theirs}");
    });
}

/// The memory node itself looks at a slot and then at the block behind it, and leaves word of what it has written.
fn the_memory_node_sees_and_shows_things_in_order([putter, reader]: [MakeCard; 2]) {
    const NOTE: u64 = 16;
    const WORD: u64 = 24;
    explore(None, move || {
        let region = Region::zeroed(4);
        let putting = region.play(putter, |session| {
            session.run(&[write(BLOCK, 1), Do::Swap(SLOT, 0, 1)]);
        });
        let reading = region.play(reader, |session| {
            if session.read(WORD) == 1 {
                assert_eq!(session.read(NOTE), 1);
            }
        });
        let memory = region.memory();
        if memory.load(Offset(SLOT)) == Ok(1) {
            let mut block = [0; 8];
            memory.read(Offset(BLOCK), &mut block).unwrap();
            assert_eq!(block, 1_u64.to_le_bytes());
        }
        memory.write(Offset(NOTE), &1_u64.to_le_bytes()).unwrap();
        memory.store(Offset(WORD), 1).unwrap();
        putting.join().unwrap();
        reading.join().unwrap();
    });
}

/// Two WRITEs, and READs of the same places in the other order.
fn writes_are_seen_in_order([writer, reader]: [MakeCard; 2]) {
    explore(None, move || {
        let region = Region::zeroed(2);
        let writing = region.play(writer, |session| {
            session.run(&[write(X, 1), write(Y, 1)]);
            // Of a later batch too.
            session.write(X, 2);
        });
        let mut session = region.session(reader);
        let (y, x) = (session.read(Y), session.read(X));
        assert!(x >= y, "{x} {y}");
        writing.join().unwrap();
    });
}

/// A put unlinks a block and then marks it as free in its owner's map. The owner that sees the mark finds the block
/// unlinked; else it would use it again under a slot that names it.
fn a_mark_is_seen_after_the_unlinking([putter, owner]: [MakeCard; 2]) {
    const MAP: u64 = 8;
    explore(None, move || {
        let region = Region::zeroed(2);
        let putting = region.play(putter, |session| {
            session.swap(SLOT, 0, 1);
            session.run(&[Do::Write(MAP + 3, vec![vec![7]])]);
        });
        let mut session = region.session(owner);
        if session.run(&[Do::Read(MAP + 3, 1)])[0] == [7] {
            assert_eq!(session.read(SLOT), 1);
        }
        putting.join().unwrap();
        assert_eq!(region.word(MAP).to_le_bytes(), [0, 0, 0, 7, 0, 0, 0, 0]);
    });
}

/// Each session raises a flag and then looks at the other's: at least one sees the other's.
fn a_read_does_not_pass_an_earlier_write(cards: [MakeCard; 2]) {
    explore(None, move || {
        let region = Region::zeroed(3);
        // In one batch, behind another READ.
        let other = region.play(cards[0], |session| {
            words_of(&session.run(&[Do::Read(16, 8), write(X, 1), Do::Read(Y, 8)])[2])
        });
        let mut session = region.session(cards[1]);
        // In two batches.
        session.write(Y, 1);
        let x = session.read(X);
        let y = other.join().unwrap()[0];
        assert!(x == 1 || y == 1, "neither saw the other's flag");
    });
}

/// The same, with flags raised by CAS.
fn a_read_does_not_pass_an_earlier_swap(cards: [MakeCard; 2]) {
    explore(None, move || {
        let region = Region::zeroed(2);
        let other = region.play(cards[0], |session| {
            session.swap(X, 0, 1);
            session.read(Y)
        });
        let mut session = region.session(cards[1]);
        session.swap(Y, 0, 1);
        let x = session.read(X);
        let y = other.join().unwrap();
        assert!(x == 1 || y == 1, "neither saw the other's flag");
    });
}

/// The same, and one looks by a CAS that must fail: it changes nothing, but it looks after the WRITE.
fn a_swap_that_fails_does_not_pass_an_earlier_write(cards: [MakeCard; 2]) {
    explore(None, move || {
        let region = Region::zeroed(2);
        let other = region.play(cards[0], |session| {
            session.write(X, 1);
            session.swap(Y, 9, 8)
        });
        let mut session = region.session(cards[1]);
        session.write(Y, 1);
        let x = session.read(X);
        let y = other.join().unwrap();
        assert!(x == 1 || y == 1, "neither saw the other's flag");
    });
}

/// The same, and one looks by a CAS that succeeds where it sees no flag.
fn a_swap_does_not_pass_an_earlier_write(cards: [MakeCard; 2]) {
    explore(None, move || {
        let region = Region::zeroed(2);
        let other = region.play(cards[0], |session| {
            session.write(X, 1);
            session.swap(Y, 0, 2)
        });
        let mut session = region.session(cards[1]);
        session.write(Y, 1);
        let x = session.read(X);
        let y = other.join().unwrap();
        assert!(x == 1 || y == 1, "neither saw the other's flag");
    });
}

/// The same with FAA.
fn an_addition_does_not_pass_an_earlier_write(cards: [MakeCard; 2]) {
    explore(None, move || {
        let region = Region::zeroed(2);
        let other = region.play(cards[0], |session| words_of(&session.run(&[write(X, 1), Do::Add(Y, 4)])[1]));
        let mut session = region.session(cards[1]);
        session.write(Y, 1);
        let x = session.read(X);
        let y = other.join().unwrap()[0];
        assert!(x == 1 || y == 1, "neither saw the other's flag");
    });
}

/// One session publishes a block; another sees it and says so with a WRITE; a third hears of it: it finds the block.
fn what_a_third_one_hears_of_is_complete(cards: [MakeCard; 2]) {
    const NEWS: u64 = 16;
    explore(None, move || {
        let region = Region::zeroed(3);
        let putting = region.play(cards[0], |session| {
            session.run(&[write(BLOCK, 1), Do::Swap(SLOT, 0, 1)]);
        });
        let telling = region.play(cards[1], |session| {
            let slot = session.read(SLOT);
            session.write(NEWS, slot);
        });
        let mut session = region.session(cards[0]);
        if session.read(NEWS) == 1 {
            assert_eq!(session.read(SLOT), 1);
            assert_eq!(session.read(BLOCK), 1);
        }
        putting.join().unwrap();
        telling.join().unwrap();
    });
}

/// A word that only grows (the tick, a counter) is never read smaller by a later READ.
fn a_word_never_goes_back([adder, reader]: [MakeCard; 2]) {
    explore(None, move || {
        let region = Region::zeroed(1);
        let adding = region.play(adder, |session| {
            session.run(&[Do::Add(X, 1), Do::Add(X, 1)]);
        });
        let mut session = region.session(reader);
        let (first, second) = (session.read(X), session.read(X));
        assert!(first <= second, "{first} {second}");
        adding.join().unwrap();
        assert_eq!(session.read(X), 2);
    });
}
