//! What a simulated world is about: its keys, who does what to them, and what may go wrong.
//!
//! Always true: a story has no randomness; a story and a schedule are a run.

use super::fault::Befall;
use super::region::Key;

/// What a client asks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ask {
    /// Its value.
    Get,
    /// Store a value of its own.
    Put,
    /// Remove it.
    Delete,
}

/// One call of a client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Call {
    /// What.
    pub ask: Ask,
    /// Of which key.
    pub key: Key,
}

/// A get.
pub const fn get(key: Key) -> Call {
    Call { ask: Ask::Get, key }
}

/// A put.
pub const fn put(key: Key) -> Call {
    Call { ask: Ask::Put, key }
}

/// A delete.
pub const fn delete(key: Key) -> Call {
    Call { ask: Ask::Delete, key }
}

/// What a rebuild makes of the segment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rebuild {
    /// One new segment.
    One,
    /// Two, each for half of the keys.
    Two,
}

/// When a block that was freed is used again: what reclamation will do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reuse {
    /// Never.
    Never,
    /// As soon as it is marked, while the grace period never ends: only the check that a block fits keeps readers right.
    AtOnce,
    /// After the grace period, as the design says.
    AfterGrace,
}

/// A world to be explored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Story {
    /// Done before anything is watched; filled with as many other keys that only take slots.
    pub before: Vec<Call>,
    /// Other keys in the bucket, which come before everything else.
    pub fillers: u8,
    /// What each client does.
    pub clients: Vec<Vec<Call>>,
    /// What may befall, each at most `befalls` times in all.
    pub may_befall: Vec<Befall>,
    /// How many such events a schedule may have.
    pub befalls: u8,
    /// The version of every block's first use: near 255, versions wrap.
    pub first_version: u8,
    /// When blocks are used again. If they are, the first client owns those of `before`.
    pub reuse: Reuse,
    /// Chunks are granted with one block left.
    pub scarce: bool,
    /// Clients are sessions of one, which share its copy of the directory.
    pub together: bool,
    /// Clients begin with a copy of the directory that leads to another segment.
    pub misled: bool,
    /// The segment is rebuilt meanwhile.
    pub rebuild: Option<Rebuild>,
    /// And then once more, or what serves the first entry by then is.
    pub rebuild_again: bool,
    /// Verbs are split into all their steps.
    pub fine: bool,
}

impl Story {
    /// Clients that do these calls, undisturbed.
    pub fn of(clients: Vec<Vec<Call>>) -> Self {
        Self {
            before: Vec::new(),
            fillers: 0,
            clients,
            may_befall: Vec::new(),
            befalls: 0,
            first_version: 1,
            reuse: Reuse::Never,
            scarce: false,
            together: false,
            misled: false,
            rebuild: None,
            rebuild_again: false,
            fine: false,
        }
    }

    /// The same after these calls.
    pub fn after(self, before: Vec<Call>) -> Self {
        Self { before, ..self }
    }

    /// The same where `befalls` of these may befall.
    pub fn with(self, befalls: u8, may_befall: &[Befall]) -> Self {
        Self { befalls, may_befall: may_befall.to_vec(), ..self }
    }

    /// The keys that are asked for.
    pub fn keys(&self) -> Vec<Key> {
        let calls = self.before.iter().chain(self.clients.iter().flatten());
        let mut keys: Vec<Key> = calls.map(|call| call.key).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ask = match self.ask {
            Ask::Get => "get",
            Ask::Put => "put",
            Ask::Delete => "delete",
        };
        match self.key {
            Key::First => write!(f, "{ask} first"),
            Key::Twin => write!(f, "{ask} twin"),
            Key::Neighbour => write!(f, "{ask} neighbour"),
            Key::Elsewhere => write!(f, "{ask} elsewhere"),
            Key::Filler(number) => write!(f, "{ask} filler {number}"),
        }
    }
}

impl std::fmt::Display for Story {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let list = |calls: &[Call]| calls.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        if !self.before.is_empty() {
            write!(f, "before: {}; ", list(&self.before))?;
        }
        if self.fillers > 0 {
            write!(f, "{} slots taken; ", self.fillers)?;
        }
        for (number, calls) in self.clients.iter().enumerate() {
            write!(f, "client {number}: {}; ", list(calls))?;
        }
        if self.first_version != 1 {
            write!(f, "versions from {}; ", self.first_version)?;
        }
        match self.reuse {
            Reuse::Never => {}
            Reuse::AtOnce => write!(f, "blocks are reused at once; ")?,
            Reuse::AfterGrace => write!(f, "blocks are reused after grace; ")?,
        }
        if self.scarce {
            write!(f, "one block a chunk; ")?;
        }
        if self.together {
            write!(f, "sessions of one client; ")?;
        }
        if self.misled {
            write!(f, "directories are old; ")?;
        }
        if let Some(rebuild) = self.rebuild {
            write!(f, "rebuild into {rebuild:?}{}; ", if self.rebuild_again { ", twice" } else { "" })?;
        }
        if self.fine {
            write!(f, "verbs tear; ")?;
        }
        let befall: Vec<&str> = self.may_befall.iter().map(|befall| befall.name()).collect();
        write!(f, "{} of [{}]", self.befalls, befall.join(", "))
    }
}
