//! What a run leaves behind that went wrong, to be judged again.
//!
//! Always true: a folder that has [`FILE`] has all that the judgement rests on.

use std::path::Path;

use super::history::Histories;
use super::keys::Keys;
use super::log::LogFile;

/// The file with what is in no log: the keys, then the incarnations of the region.
const FILE: &str = "run.txt";

/// A run's histories.
#[derive(Debug)]
pub struct Evidence {
    /// All calls.
    pub histories: Histories,
    /// Their keys.
    pub keys: Keys,
    /// Lives of the region.
    pub lives: usize,
}

impl Evidence {
    /// Writes down what is in no log.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn save(directory: &Path, keys: &Keys, lives: &[u64]) -> std::io::Result<()> {
        let mut text = format!("{}\n", keys.text());
        text.extend(lives.iter().map(|life| format!("{life}\n")));
        std::fs::write(directory.join(FILE), text)
    }

    /// Reads what a run left in `directory`.
    ///
    /// # Errors
    /// What is missing, or makes no sense.
    pub fn load(directory: &Path) -> Result<Self, Box<dyn std::error::Error>> {
        let text = std::fs::read_to_string(directory.join(FILE))?;
        let mut lines = text.lines();
        let keys = lines.next().and_then(Keys::parse).ok_or("no keys")?;
        let lives = lines.map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        let histories = Histories::read(&LogFile::all_in(directory)?, &lives)?;
        Ok(Self { histories, keys, lives: lives.len() })
    }
}
