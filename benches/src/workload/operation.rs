//! Which kind of operation comes next.
//!
//! Always true: a kind whose proportion is 0 is never drawn.

use super::settings::Settings;
use crate::random::RandomStream;

/// A kind of operation, as the report names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationKind {
    /// One get.
    Read,
    /// One put over an existing key.
    Update,
    /// One put of a new key.
    Insert,
    /// A get and a put of the same key, timed together.
    ReadModifyWrite,
    /// One delete (only in replays).
    Delete,
}

impl OperationKind {
    /// All of them, in the order of the report.
    pub const ALL: [Self; 5] = [Self::Read, Self::Update, Self::Insert, Self::ReadModifyWrite, Self::Delete];

    /// YCSB's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "READ",
            Self::Update => "UPDATE",
            Self::Insert => "INSERT",
            Self::ReadModifyWrite => "READ-MODIFY-WRITE",
            Self::Delete => "DELETE",
        }
    }
}

/// Draws kinds by their proportions.
#[derive(Debug, Clone)]
pub struct OperationChooser {
    /// Kinds with the upper end of their part of `[0, 1)`; the last end is 1.
    ends: Vec<(f64, OperationKind)>,
}

impl OperationChooser {
    /// For a workload, whose proportions need not add up to 1.
    pub fn new(settings: &Settings) -> Self {
        let weights = [
            (settings.read_proportion, OperationKind::Read),
            (settings.update_proportion, OperationKind::Update),
            (settings.insert_proportion, OperationKind::Insert),
            (settings.read_modify_write_proportion, OperationKind::ReadModifyWrite),
        ];
        let total: f64 = weights.iter().map(|(weight, _)| weight).sum();
        let mut end = 0.0;
        let mut ends: Vec<_> = weights
            .into_iter()
            .filter(|(weight, _)| *weight > 0.0)
            .map(|(weight, kind)| {
                end += weight / total;
                (end, kind)
            })
            .collect();
        if let Some(last) = ends.last_mut() {
            last.0 = 1.0;
        }
        Self { ends }
    }

    /// The next kind.
    pub fn next(&self, random: &mut RandomStream) -> OperationKind {
        let unit = random.unit();
        self.ends
            .iter()
            .find(|(end, _)| unit < *end)
            .map(|(_, kind)| *kind)
            .expect("the last part ends at 1 and settings have a positive proportion")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::properties::Properties;

    #[test]
    fn kinds_come_in_proportion() {
        let mut properties = Properties::default();
        for argument in ["recordcount=1", "readproportion=3", "updateproportion=0", "insertproportion=1"] {
            properties.set_argument(argument).unwrap();
        }
        let chooser = OperationChooser::new(&Settings::new(&properties, "test", 1 << 20).unwrap());
        let mut random = RandomStream::new(1, 0);
        let kinds: Vec<_> = (0..100_000).map(|_| chooser.next(&mut random)).collect();
        let count = |wanted| kinds.iter().filter(|kind| **kind == wanted).count();
        assert!((74_300..75_700).contains(&count(OperationKind::Read)));
        assert_eq!(count(OperationKind::Read) + count(OperationKind::Insert), 100_000);
    }
}
