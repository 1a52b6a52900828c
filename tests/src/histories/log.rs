//! One session's log.
//!
//! Always true: what [`Log::append`] returned from is in the file, whatever happens to the process then. One thread writes
//! a log. Only its last record can be torn, if the process was killed as it wrote it; a record that was never written
//! whole says nothing.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::time::{ClockId, clock_gettime};

use super::record::{RECORD_BYTES, Record};

/// Where a log is, and whose it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogFile {
    /// The client process.
    pub client: u16,
    /// Which of its sessions.
    pub session: u8,
    /// The file.
    pub path: PathBuf,
}

impl LogFile {
    /// The log of a session, in the folder of its run.
    pub fn of(directory: &Path, client: u16, session: u8) -> Self {
        Self { client, session, path: directory.join(format!("client-{client}-session-{session}.log")) }
    }

    /// All logs in a folder.
    ///
    /// # Errors
    /// If it can't be read.
    pub fn all_in(directory: &Path) -> io::Result<Vec<Self>> {
        let mut logs = Vec::new();
        for entry in std::fs::read_dir(directory)? {
            let name = entry?.file_name();
            let numbers = name.to_str().and_then(|name| {
                let (client, session) =
                    name.strip_prefix("client-")?.strip_suffix(".log")?.split_once("-session-")?;
                Some((client.parse().ok()?, session.parse().ok()?))
            });
            logs.extend(numbers.map(|(client, session)| Self::of(directory, client, session)));
        }
        Ok(logs)
    }
}

/// A log being written. `write` leaves the bytes with the kernel: SIGKILL takes the process and not the page cache.
#[derive(Debug)]
pub struct Log {
    file: File,
    position: u64,
}

impl Log {
    /// Begins an empty log.
    ///
    /// # Errors
    /// If there can be no such file, or there is one.
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create_new(true).open(path)?;
        Ok(Self { file, position: 0 })
    }

    /// Writes a record behind the others.
    ///
    /// # Errors
    /// If it can't be written. The log is of no use any more then.
    pub fn append(&mut self, record: &Record) -> io::Result<()> {
        self.file.write_all(&record.encode(self.position))?;
        self.position += 1;
        Ok(())
    }
}

/// The clock of all logs: one for all processes of a host, and it never goes back from one processor to another.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A log that can't be.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file.
    #[error("{}: {source}", path.display())]
    Io {
        /// Of the file.
        path: PathBuf,
        /// What is wrong with it.
        source: io::Error,
    },
    /// A record that is damaged though others follow it.
    #[error("{}: record {position} of {records} is damaged", path.display())]
    Damaged {
        /// Of the file.
        path: PathBuf,
        /// Which record.
        position: u64,
        /// How many there are.
        records: u64,
    },
    /// A return without its call, or a call without its return though others follow it.
    #[error("{}: record {position} is out of turn", path.display())]
    OutOfTurn {
        /// Of the file.
        path: PathBuf,
        /// Which record.
        position: u64,
    },
    /// An incarnation that the region never had, or had before an earlier record's.
    #[error("{}: record {position} is of incarnation {incarnation:#x}, which was not there then", path.display())]
    WrongLife {
        /// Of the file.
        path: PathBuf,
        /// Which record.
        position: u64,
        /// As it says.
        incarnation: u64,
    },
}

/// The records of a log, without the last if it is torn.
///
/// # Errors
/// [`LogError`] if the file can't be read, or is damaged elsewhere.
pub fn read(path: &Path) -> Result<Vec<Record>, LogError> {
    let bytes = std::fs::read(path).map_err(|source| LogError::Io { path: path.to_owned(), source })?;
    let (whole, _torn) = bytes.as_chunks::<RECORD_BYTES>();
    let mut records = Vec::with_capacity(whole.len());
    for (position, bytes) in whole.iter().enumerate() {
        match Record::parse(bytes, position as u64) {
            Some(record) => records.push(record),
            None if position + 1 == whole.len() => {}
            None => {
                let (position, records) = (position as u64, whole.len() as u64);
                return Err(LogError::Damaged { path: path.to_owned(), position, records });
            }
        }
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::super::record::{Ask, Entry};
    use super::*;

    fn record(key: u16) -> Record {
        Record { time: now_ns(), incarnation: Some(1), key, entry: Entry::Invoked(Ask::Get) }
    }

    /// A log that ends anywhere, as SIGKILL leaves it, gives the records that were written whole. One that is damaged in
    /// the middle is no log.
    #[test]
    fn a_torn_end_is_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut log = Log::create(&path).unwrap();
        let records: Vec<_> = (0..5).map(record).collect();
        records.iter().for_each(|record| log.append(record).unwrap());
        assert!(Log::create(&path).is_err(), "a log is never continued");
        let bytes = std::fs::read(&path).unwrap();
        for end in 0..=bytes.len() {
            std::fs::write(&path, &bytes[..end]).unwrap();
            assert_eq!(read(&path).unwrap(), records[..end / RECORD_BYTES], "cut at {end}");
        }
        let mut damaged = bytes.clone();
        damaged[RECORD_BYTES * 4] ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        assert_eq!(read(&path).unwrap(), records[..4], "a record that is there and not whole is torn, too");
        damaged[RECORD_BYTES * 2] ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        assert!(matches!(read(&path), Err(LogError::Damaged { position: 2, records: 5, .. })));
    }
}
