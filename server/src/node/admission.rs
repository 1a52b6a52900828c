//! Letting a client in: token, fabric, session, and how to join the data path.
//!
//! Always true: what is checked first costs least, so strangers are turned away before anything is made for
//! them; a client that is refused leaves nothing behind.

use std::net::{IpAddr, SocketAddr};

use sidestep_common::fabric::{FabricKind, Join, Rights, SessionId};
use sidestep_common::layout::KEY_BYTES_MAX;
use sidestep_common::wire::{Hello, Refusal, RefusalCode, Welcome};

use super::{End, Node, Serving, State, fenced, refusal};
use crate::config::Secret;
use crate::sessions::{epoch_deadline, lease_deadline};

/// Characters of a client's name, and of its version, that are kept.
const NAME_CHARS_MAX: usize = 64;

/// Who is at the other end of a control connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// Over TCP.
    Tcp(SocketAddr),
    /// Over the Unix socket.
    Unix,
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix => f.write_str("the Unix socket"),
        }
    }
}

impl Node {
    /// Opens a session. Blocks for as long as the fabric takes.
    ///
    /// # Errors
    /// The refusal to send.
    pub fn admit(&self, hello: &Hello, peer: Peer) -> Result<(SessionId, Welcome), Refusal> {
        let serving = self.serving_or_refuse()?;
        if self.state() != State::Ready {
            return Err(refusal(RefusalCode::Draining, "the server is shutting down".into()));
        }
        self.check_token(hello.token.as_deref())?;
        let fabric = self.choose_fabric(serving, hello)?;
        let short = |text: &str| -> String { text.chars().take(NAME_CHARS_MAX).collect() };
        let (name, version) = (short(&hello.client_name), short(&hello.client_version));
        let lease_ms = self.config.lease_ms;
        let (deadline, epoch_deadline) = (lease_deadline(lease_ms), epoch_deadline(lease_ms));
        let (session, epoch) = {
            let mut sessions = serving.sessions();
            let session = sessions
                .open(hello.rights, fabric, name.clone(), deadline, epoch_deadline)
                .map_err(|error| refusal(RefusalCode::SessionLimit, error.to_string()))?;
            // Under one lock: whoever ends the session takes it out of the epochs after it was put in.
            let epoch = serving.epochs().join(session.id);
            (session, epoch)
        };
        let join = match self.join(serving, session.id, fabric, hello.rights, peer) {
            Ok(join) => join,
            Err(refusal) => {
                self.end_session(session.id, End::Goodbye);
                return Err(refusal);
            }
        };
        tracing::info!(session = session.id.0, %fabric, %peer, client = ?name, ?version,
            process = hello.process_id, rights = ?hello.rights, "session opened");
        let welcome = Welcome {
            server_version: env!("CARGO_PKG_VERSION").into(),
            session: session.id,
            lease_ms: self.config.lease_ms,
            epoch,
            superblock: serving.region.superblock.encode().to_vec(),
            key_bytes_max: KEY_BYTES_MAX as u32,
            value_bytes_max: self.config.max_value.0 as u32,
            admin: self.admin_for(peer),
            join,
        };
        Ok((session.id, welcome))
    }

    fn check_token(&self, given: Option<&str>) -> Result<(), Refusal> {
        let wrong = |message: &str| Err(refusal(RefusalCode::Credentials, message.into()));
        match (&self.config.token, given) {
            (None, _) => Ok(()),
            (Some(token), Some(given)) if Secret::matches(token, given) => Ok(()),
            (Some(_), Some(_)) => wrong("the token is wrong"),
            (Some(_), None) => wrong("this server wants a token"),
        }
    }

    /// The first fabric of the client's list that can work.
    fn choose_fabric(&self, serving: &Serving, hello: &Hello) -> Result<FabricKind, Refusal> {
        if hello.fabrics.is_empty() {
            return Err(refusal(RefusalCode::Invalid, "the client names no fabric".into()));
        }
        let same_host = !self.boot_id.is_empty() && hello.boot_id.trim() == self.boot_id;
        let works = |fabric: &&FabricKind| {
            serving.targets.get(**fabric).is_some() && (**fabric != FabricKind::Shm || same_host)
        };
        hello.fabrics.iter().find(works).copied().ok_or_else(|| {
            let wanted: Vec<_> = hello.fabrics.iter().map(|fabric| fabric.name()).collect();
            let mut message = format!(
                "the client takes {}, this server serves {}",
                wanted.join(", "),
                serving.plan.describe()
            );
            if !same_host && hello.fabrics.contains(&FabricKind::Shm) {
                message.push_str(" (shm only to processes of its own host, and the client is on another)");
            }
            refusal(RefusalCode::Fabric, message)
        })
    }

    fn join(
        &self,
        serving: &Serving,
        session: SessionId,
        fabric: FabricKind,
        rights: Rights,
        peer: Peer,
    ) -> Result<Join, Refusal> {
        let Some(target) = serving.targets.get(fabric) else {
            return Err(refusal(RefusalCode::Fabric, format!("{fabric} is not served here")));
        };
        let mut join =
            target.admit(session, rights).map_err(|reason| refusal(RefusalCode::Fabric, reason))?;
        // Whoever ends a session marks it as ending before it fences, so one that lives now is fenced with this
        // ticket. One that was ended since it was looked up may have been fenced before the ticket was there.
        if !serving.sessions().is_living(session) {
            target.fence(session);
            return Err(fenced(session));
        }
        // A client at the Unix socket has no address of ours to go by.
        if let (Join::Tcp { host: host @ None, .. }, Peer::Unix) = (&mut join, peer) {
            *host = Some(self.host().to_owned());
        }
        Ok(join)
    }

    /// Fences a session's data path and lets it join anew. Blocks for as long as the fabric takes.
    ///
    /// # Errors
    /// The refusal to send.
    pub fn rejoin(&self, session: SessionId, rights: Rights, peer: Peer) -> Result<Join, Refusal> {
        let serving = self.serving_or_refuse()?;
        let fabric = serving.sessions().living_fabric(session).ok_or_else(|| fenced(session))?;
        let fenced = serving.targets.get(fabric).is_none_or(|target| target.fence(session));
        if !fenced {
            let message = format!(
                "the old {fabric} data path can't be revoked while its process has it: close it there first"
            );
            return Err(refusal(RefusalCode::Invalid, message));
        }
        tracing::info!(session = session.0, %fabric, "session joins anew");
        if rights.can_write() {
            // The last marks of the old data path may not have got through, and nobody knows of which blocks.
            serving.sweeps().want();
            serving.bell.ring();
        }
        self.join(serving, session, fabric, rights, peer)
    }

    /// The published host, as it would be written in front of a port, without brackets.
    fn host(&self) -> &str {
        let address = self.endpoint.strip_prefix("sidestep://").unwrap_or(&self.endpoint);
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }

    /// Where `peer` can reach the admin endpoint, if it can.
    fn admin_for(&self, peer: Peer) -> Option<String> {
        let admin = self.admin?;
        let is_local = match peer {
            Peer::Unix => true,
            Peer::Tcp(address) => address.ip().to_canonical().is_loopback(),
        };
        let host = match admin.ip() {
            address if address.is_loopback() => return is_local.then(|| admin.to_string()),
            address if !address.is_unspecified() => return Some(admin.to_string()),
            IpAddr::V4(_) | IpAddr::V6(_) => self.host(),
        };
        let bracketed = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        Some(format!("{bracketed}:{}", admin.port()))
    }
}
