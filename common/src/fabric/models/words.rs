//! Rule 3 of the contract: aligned words are indivisible, and a WRITE leaves the bytes beside it alone.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use super::{Do, MakeCard, Region, between_two, word_of, words_of};
use crate::sync::explore;

const OLD: u64 = 0;
const NEW: u64 = 0x0101_0101_0101_0101;

between_two!(
    bare too:
    exactly_one_swap_wins,
    swaps_and_additions_are_all_counted,
    one_byte_writes_leave_the_word_and_its_neighbours_alone,
    a_word_that_pieces_share_is_stored_whole,
    a_read_under_a_write_tears_between_words_only;
    fenced:
);

/// Three swaps of one word: one wins, and the others are told its word.
fn exactly_one_swap_wins(cards: [MakeCard; 2]) {
    explore(None, move || {
        let region = Region::zeroed(1);
        let others = [1, 2].map(|number: u64| {
            region.play(cards[number as usize % 2], move |session| session.swap(0, 0, number))
        });
        let mine = region.session(cards[0]).swap(0, 0, 3);
        let others = others.map(|other| other.join().unwrap());
        let found = [others[0], others[1], mine];
        let winner = region.word(0);
        for (number, found) in (1..).zip(found) {
            assert_eq!(found, if number == winner { 0 } else { winner }, "{number} of {winner}");
        }
    });
}

/// Each session adds one by FAA and one by CAS, tried again until it wins: nothing is lost, and no old word is
/// given twice.
fn swaps_and_additions_are_all_counted(cards: [MakeCard; 2]) {
    let count = |session: &mut super::Session| {
        let added = word_of(&session.run(&[Do::Add(0, 1)])[0]);
        let mut expected = added + 1;
        loop {
            let found = session.swap(0, expected, expected + 1);
            if found == expected {
                return [added, expected];
            }
            expected = found;
        }
    };
    explore(None, move || {
        let region = Region::zeroed(1);
        let other = region.play(cards[0], count);
        let mine = count(&mut region.session(cards[1]));
        let mut old = [mine, other.join().unwrap()].concat();
        old.sort_unstable();
        assert_eq!((old, region.word(0)), (vec![0, 1, 2, 3], 4));
    });
}

/// Two sessions mark bytes of one word, and one counts in the word beside it.
fn one_byte_writes_leave_the_word_and_its_neighbours_alone(cards: [MakeCard; 2]) {
    explore(None, move || {
        let region = Region::zeroed(2);
        let other = region.play(cards[0], move |session| {
            session.run(&[Do::Write(7, vec![vec![7]])]);
            session.run(&[Do::Read(7, 1)])[0][0]
        });
        let mut session = region.session(cards[1]);
        session.run(&[Do::Write(2, vec![vec![5]]), Do::Add(8, 1)]);
        let mine = session.run(&[Do::Read(2, 1)])[0][0];
        assert_eq!((mine, other.join().unwrap()), (5, 7));
        assert_eq!(region.word(0).to_le_bytes(), [0, 0, 5, 0, 0, 0, 0, 7]);
        assert_eq!(region.word(8), 1);
    });
}

/// Header, key and value meet in the middle of words: each word is old or new, never half of each.
fn a_word_that_pieces_share_is_stored_whole([writer, reader]: [MakeCard; 2]) {
    explore(None, move || {
        let region = Region::zeroed(2);
        let pieces = vec![vec![1; 3], vec![1; 2], vec![1; 11]];
        let writing = region.play(writer, |session| {
            session.run(&[Do::Write(0, pieces)]);
        });
        for word in region.session(reader).read_words(0, 2) {
            assert!(word == OLD || word == NEW, "{word:#018x}");
        }
        writing.join().unwrap();
        assert_eq!((region.word(0), region.word(8)), (NEW, NEW));
    });
}

/// A READ that overlaps a WRITE sees each word old or new, in every mixture (and so do those who parse blocks); never a
/// word of both.
fn a_read_under_a_write_tears_between_words_only([writer, reader]: [MakeCard; 2]) {
    let mixtures = Arc::new(Mutex::new(BTreeSet::new()));
    let seen = Arc::clone(&mixtures);
    explore(None, move || {
        let region = Region::zeroed(2);
        let writing = region.play(writer, |session| {
            session.run(&[Do::Write(0, vec![vec![1; 16]])]);
        });
        let words = words_of(&region.session(reader).run(&[Do::Read(0, 16)])[0]);
        assert!(words.iter().all(|word| [OLD, NEW].contains(word)), "{words:x?}");
        seen.lock().unwrap().insert(words);
        writing.join().unwrap();
    });
    // Else the model would not be as weak as the contract, and the others prove less than they say.
    assert_eq!(mixtures.lock().unwrap().len(), 4, "{mixtures:x?}");
}
