//! The driver can fail: logs that were doctored are found out, and honest ones are not.

use super::history::Histories;
use super::keys::Keys;
use super::log::{Log, LogError, LogFile};
use super::record::{Ask, Ending, Entry, Record};
use super::trouble::Trouble;
use super::value::Number;
use super::verdict::{Checked, judge};

const LIVES: [u64; 2] = [77, 88];

/// Logs of some clients with one session each, written down in the order of what happened.
#[derive(Default)]
struct Story {
    time: u64,
    logs: Vec<Vec<Record>>,
}

impl Story {
    fn write(&mut self, client: usize, life: usize, key: u16, entry: Entry) -> &mut Self {
        if self.logs.len() <= client {
            self.logs.resize(client + 1, Vec::new());
        }
        self.time += 10;
        let incarnation = Some(LIVES[life]);
        self.logs[client].push(Record { time: self.time, incarnation, key, entry });
        self
    }

    fn invoke(&mut self, client: usize, ask: Ask) -> &mut Self {
        self.write(client, 0, 0, Entry::Invoked(ask))
    }

    fn answer(&mut self, client: usize, ending: Ending) -> &mut Self {
        self.write(client, 0, 0, Entry::Returned(ending))
    }

    /// A call that nobody overlaps, in the life with that number.
    fn call(&mut self, client: usize, life: usize, ask: Ask, ending: Ending) -> &mut Self {
        self.write(client, life, 0, Entry::Invoked(ask)).write(client, life, 0, Entry::Returned(ending))
    }

    fn judge(&self) -> Result<Checked, Trouble> {
        let directory = tempfile::tempdir().unwrap();
        let mut files = Vec::new();
        for (client, records) in self.logs.iter().enumerate() {
            let path = directory.path().join(client.to_string());
            let mut log = Log::create(&path).unwrap();
            records.iter().for_each(|record| log.append(record).unwrap());
            files.push(LogFile { client: client as u16, session: 0, path });
        }
        // A process that was killed before it began its log.
        files.push(LogFile { client: 99, session: 0, path: directory.path().join("none") });
        let histories = Histories::read(&files, &LIVES)?;
        judge(&histories, &Keys::parse("1,2,3").unwrap(), LIVES.len())
    }

    #[track_caller]
    fn is_good(&self) -> Checked {
        self.judge().unwrap_or_else(|trouble| panic!("{trouble}"))
    }

    /// What is said of a contradiction.
    #[track_caller]
    fn complaint(&self) -> String {
        match self.judge() {
            Err(Trouble::NotLinearizable(complaint)) => complaint.to_string(),
            other => panic!("{other:?}"),
        }
    }
}

fn put(count: u32) -> Ask {
    Ask::Put(Number::new(1, 0, count, 0))
}

fn found(count: u32) -> Ending {
    Ending::Found(Number::new(1, 0, count, 0))
}

/// Clients take turns for a while, and are told the truth.
fn honest() -> Story {
    let mut story = Story::default();
    for count in 1..40 {
        let (writer, reader) = (count as usize % 3, count as usize % 2);
        story.call(writer, 0, put(count), Ending::Stored).call(reader, 0, Ask::Get, found(count));
        if count % 5 == 0 {
            story.call(reader, 0, Ask::Delete, Ending::Existed).call(writer, 0, Ask::Get, Ending::Absent);
            story.call(writer, 0, Ask::Delete, Ending::NotThere);
        }
    }
    story
}

#[test]
fn honest_logs_are_believed() {
    let checked = honest().is_good();
    assert_eq!((checked.events, checked.open, checked.histories), (39 * 2 + 7 * 3, 0, 1));
}

/// Any two values that gets returned are swapped in the log of whoever got them: what is said has the two puts and one of
/// the gets, and where they are from.
#[test]
fn two_returned_values_that_are_swapped_are_found_out() {
    let honest = honest();
    let gets: Vec<(usize, usize)> = (0..honest.logs.len())
        .flat_map(|log| (0..honest.logs[log].len()).map(move |at| (log, at)))
        .filter(|&(log, at)| matches!(honest.logs[log][at].entry, Entry::Returned(Ending::Found(_))))
        .collect();
    assert_eq!(gets.len(), 39);
    for (index, &(log, at)) in gets.iter().enumerate() {
        let (other_log, other_at) = gets[(index + 1) % gets.len()];
        let mut story = Story { time: honest.time, logs: honest.logs.clone() };
        story.logs[log][at].entry = honest.logs[other_log][other_at].entry;
        story.logs[other_log][other_at].entry = honest.logs[log][at].entry;
        let complaint = story.complaint();
        assert!(
            complaint.contains("not linearizable") && complaint.contains("session 0, record"),
            "{complaint}"
        );
        assert!(complaint.starts_with("key 0 (hot"), "{complaint}");
    }
}

#[test]
fn wrong_answers_are_found_out() {
    for (ask, ending) in [
        (Ask::Get, Ending::Absent),
        (Ask::Get, found(38)),
        (Ask::Get, found(100)),
        (Ask::Delete, Ending::NotThere),
    ] {
        let mut story = honest();
        story.call(0, 0, ask, ending);
        story.complaint();
    }
}

/// A process dies in the middle of a put. Others see it, or they don't; but who saw it does not unsee it.
#[test]
fn a_call_without_a_return_may_have_happened() {
    let mut story = honest();
    story.invoke(3, put(100));
    story.call(0, 0, Ask::Get, found(39)).call(0, 0, Ask::Get, found(100)).call(1, 0, Ask::Get, found(100));
    // It may as well have waited for the server's next life.
    assert_eq!(story.is_good().open, 2);
    story.call(0, 0, Ask::Get, found(39));
    story.complaint();
}

/// An unknown outcome takes effect whenever it likes, or never; one that is known to have done nothing never does.
#[test]
fn unknown_outcomes_are_open_and_failures_are_nothing() {
    let mut story = honest();
    story.call(2, 0, put(100), Ending::Unknown).call(2, 0, Ask::Get, Ending::Unknown);
    story.call(0, 0, Ask::Get, found(39)).is_good();
    story.call(0, 0, Ask::Get, found(100)).is_good();
    let mut story = honest();
    story.call(2, 0, put(100), Ending::Nothing).call(0, 0, Ask::Get, found(39)).is_good();
    story.call(0, 0, Ask::Get, found(100));
    story.complaint();
}

/// Only calls that overlap may be seen in either order.
#[test]
fn times_decide_what_overlaps() {
    let mut story = Story::default();
    story.invoke(0, put(1)).invoke(1, put(2)).answer(0, Ending::Stored).answer(1, Ending::Stored);
    story.call(2, 0, Ask::Get, found(1)).is_good();
    let mut story = Story::default();
    story.invoke(0, put(1)).answer(0, Ending::Stored).invoke(1, put(2)).answer(1, Ending::Stored);
    story.call(2, 0, Ask::Get, found(1));
    story.complaint();
}

/// After a restart the region is empty. Who was still in the old one sees what was there; in the new one nothing of it is
/// there, unless a call that began before the restart brings it.
#[test]
fn lives_of_the_region_have_their_own_histories() {
    let restarted = || {
        let mut story = honest();
        story.call(1, 1, Ask::Get, Ending::Absent).call(1, 1, Ask::Delete, Ending::NotThere);
        story
    };
    restarted().call(0, 0, Ask::Get, found(39)).is_good();
    restarted().call(0, 1, put(100), Ending::Stored).call(1, 1, Ask::Get, found(100)).is_good();
    let complaint = restarted().call(0, 1, Ask::Get, found(39)).complaint();
    assert!(complaint.contains("life 1 of the region"), "{complaint}");
    let mut story = restarted();
    story.write(0, 0, 0, Entry::Invoked(put(100))).write(0, 1, 0, Entry::Returned(Ending::Stored));
    story.call(1, 1, Ask::Get, Ending::Absent).call(1, 1, Ask::Get, found(100)).is_good();
}

#[test]
fn logs_that_make_no_sense_are_no_history() {
    let trouble = |story: &Story| match story.judge() {
        Err(Trouble::Log(error)) => error,
        other => panic!("{other:?}"),
    };
    let mut twice = honest();
    twice.invoke(0, Ask::Get).invoke(0, Ask::Get);
    let mut unasked = honest();
    unasked.answer(0, Ending::Stored);
    let mut unfit = honest();
    unfit.invoke(0, Ask::Get).answer(0, Ending::Stored);
    for story in [twice, unasked, unfit] {
        assert!(matches!(trouble(&story), LogError::OutOfTurn { .. }));
    }
    let mut back = honest();
    back.call(0, 1, Ask::Get, Ending::Absent).call(0, 0, Ask::Get, found(39));
    assert!(matches!(trouble(&back), LogError::WrongLife { incarnation: 77, .. }));
}
